"""P2: a whole process that fits a trivial function in process, from its start to its exit."""

from __future__ import annotations

from functools import partial

from benchmarks import peer
from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS, answer_of, time_process

__all__ = ["BENCHMARK"]


def _measure(settings: Settings) -> Outcome:
    timings = interleave(
        {
            "floor": partial(time_process, OWN_PYTHON, "-c", "pass"),
            "turnout": partial(time_process, OWN_PYTHON, PROGRAMS / "fit_turnout.py"),
            "peer": partial(time_process, peer.python(), PROGRAMS / "fit_peer.py"),
        },
        rounds=settings.rounds(9),
    )

    def series(side: str, name: str, role: Role) -> Series:
        return Series(name=name, role=role, unit="s", runs=[each.wall_s for each in timings[side]])

    turnout = series("turnout", "whole process", Role.TURNOUT)
    cpu = Series(name="its CPU time", role=Role.TURNOUT, unit="s", runs=[each.cpu_s for each in timings["turnout"]])
    ray_train = series("peer", "local mode, whole process", Role.PEER)
    advantage = ratios("peer over Turnout", ray_train, turnout)
    heavy = answer_of(OWN_PYTHON, PROGRAMS / "after_running.py", PROGRAMS / "fit_turnout.py")["heavy_modules"]
    return Outcome(
        series=[turnout, cpu, ray_train, series("floor", "`python -c pass`", Role.FLOOR), advantage],
        checks=[
            Check.at_most(turnout, 0.25),
            Check.at_least(advantage, 12),
            Check.none_of("heavy modules in `sys.modules` after `fit()`: none", heavy),
        ],
    )


BENCHMARK = Benchmark(
    id="P2",
    title="A whole process that fits a trivial function in process (`num_workers=0`)",
    target="at most 0.25 s; at least 12 times faster than the peer; neither torch nor ray loaded",
    measure=_measure,
)
