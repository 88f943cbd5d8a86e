"""T1: what a test on two ranks costs by the marker of the pytest plugin, and fifty of them."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS

__all__ = ["BENCHMARK"]


class _Session(NamedTuple):
    """What a test session took.

    Args:
        whole_s: from its start to its exit.
        test_s: the median of its tests, but for the slowest two: each worker's first one starts a server.
    """

    whole_s: float
    test_s: float


def _session(file: str, *arguments: str) -> _Session:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command: list[str | Path] = [
            OWN_PYTHON,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *arguments,
        ]
        started = time.perf_counter()
        subprocess.run([*command, PROGRAMS / file], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        whole_s = time.perf_counter() - started
        times = sorted(float(case.attrib["time"]) for case in ElementTree.parse(report).iter("testcase"))
    return _Session(whole_s, statistics.median(times[:-2] if len(times) > 5 else times))


def _measure(settings: Settings) -> Outcome:
    sessions = interleave(
        {
            "alone": partial(_session, "marker_tests.py", "-n", "0"),
            "xdist": partial(_session, "marker_tests.py", "-n", "2"),
            "gloo": partial(_session, "gloo_marker_tests.py", "-n", "0"),
            "spawn": partial(_session, "spawn_tests.py", "-n", "0"),
        },
        rounds=settings.rounds(5),
        warm_ups=0 if settings.quick else 1,
    )

    def series(side: str, name: str, role: Role, *, is_whole: bool = False) -> Series:
        runs = [each.whole_s if is_whole else 1e3 * each.test_s for each in sessions[side]]
        return Series(name=name, role=role, unit="s" if is_whole else "ms", runs=runs)

    test = series("alone", "a test after the first", Role.TURNOUT)
    alone = series("alone", "fifty, whole session", Role.TURNOUT, is_whole=True)
    xdist = series("xdist", "fifty under `pytest-xdist -n 2`", Role.TURNOUT, is_whole=True)
    gloo = series("gloo", "one with gloo", Role.TURNOUT)
    spawn = series("spawn", "a test by `torch.multiprocessing.spawn`", Role.PEER)
    return Outcome(
        series=[test, alone, xdist, gloo, spawn, ratios("peer over Turnout, both with gloo", spawn, gloo)],
        checks=[Check.at_most(test, 100), Check.at_most(gloo, 100), Check.at_most(alone, 10), Check.at_most(xdist, 10)],
    )


BENCHMARK = Benchmark(
    id="T1",
    title="A test on two ranks by `@pytest.mark.ranks(2)`, and fifty of them in a session",
    target="at most 100 ms after the first; fifty in less than 10 s, also under `pytest-xdist -n 2`",
    measure=_measure,
)
