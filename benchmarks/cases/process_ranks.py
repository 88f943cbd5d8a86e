"""P8, P9 and P11: ranks on this machine: how fast they report, start, and are back after one was killed.

Ours are forked from the warm server; torchrun and `torch.multiprocessing.spawn` import torch in every rank. The floors
are written out by hand: a fork of a process that has imported torch, and two pipes to a parent that answers.
"""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS, answer_of

__all__ = ["BENCHMARKS"]

_PROGRAM = PROGRAMS / "ranks.py"


def _measured(settings: Settings, *sides: tuple[str, ...], rounds: int = 7) -> dict[str, list[float]]:
    programs = {" ".join(side): partial(answer_of, OWN_PYTHON, _PROGRAM, *side) for side in sides}
    return interleave(programs, rounds=settings.rounds(rounds))


def _measure_reports(settings: Settings) -> Outcome:
    sides = [("reports", side) for side in ("turnout", "gloo", "pipe")]
    taken = _measured(settings, *sides)
    turnout = Series(name="`report` in a loop", role=Role.TURNOUT, unit="/s", runs=taken["reports turnout"])
    gloo = Series(name="a gloo barrier in a loop", role=Role.PEER, unit="/s", runs=taken["reports gloo"])
    pipe = Series(name="a bare exchange by pipes", role=Role.FLOOR, unit="/s", runs=taken["reports pipe"])
    comparisons = [
        ratios("Turnout over gloo's barrier", turnout, gloo),
        ratios("Turnout over the floor", turnout, pipe),
    ]
    return Outcome(series=[turnout, gloo, pipe, *comparisons], checks=[Check.at_least(turnout, 5_000)])


def _measure_starts(settings: Settings) -> Outcome:
    sides = [("start", side, "2") for side in ("turnout", "torchrun", "spawn", "fork")]
    taken = _measured(settings, *sides, ("start", "turnout", "4"), ("start", "fork", "4"), rounds=5)
    turnout = Series(name="warm, 2 ranks", role=Role.TURNOUT, unit="ms", runs=taken["start turnout 2"])
    four = Series(name="warm, 4 ranks", role=Role.TURNOUT, unit="ms", runs=taken["start turnout 4"])
    torchrun = Series(name="torchrun, 2 ranks", role=Role.PEER, unit="ms", runs=taken["start torchrun 2"])
    spawn = Series(name="torch.multiprocessing.spawn, 2 ranks", role=Role.PEER, unit="ms", runs=taken["start spawn 2"])
    floor = Series(name="fork and gloo by hand, 2 ranks", role=Role.FLOOR, unit="ms", runs=taken["start fork 2"])
    floor_4 = Series(name="fork and gloo by hand, 4 ranks", role=Role.FLOOR, unit="ms", runs=taken["start fork 4"])
    comparisons = [
        ratios("torchrun over Turnout", torchrun, turnout),
        ratios("spawn over Turnout", spawn, turnout),
        ratios("Turnout over the floor, 2 ranks", turnout, floor),
        ratios("Turnout over the floor, 4 ranks", four, floor_4),
    ]
    return Outcome(
        series=[turnout, four, torchrun, spawn, floor, floor_4, *comparisons],
        checks=[Check.at_most(turnout, 40), Check.at_most(four, 80)],
    )


def _measure_recovery(settings: Settings) -> Outcome:
    taken = _measured(settings, ("recover", "turnout"), ("recover", "torchrun"), rounds=5)
    turnout = Series(name="2 ranks, gloo", role=Role.TURNOUT, unit="ms", runs=taken["recover turnout"])
    torchrun = Series(
        name="torchrun --max-restarts, 2 ranks, no gloo", role=Role.PEER, unit="ms", runs=taken["recover torchrun"]
    )
    return Outcome(
        series=[turnout, torchrun, ratios("torchrun over Turnout", torchrun, turnout)],
        checks=[Check.at_most(turnout, 120)],
    )


BENCHMARKS = (
    Benchmark(
        id="P8",
        title="Process group, 2 ranks: metrics-only `report` in a loop",
        target="at least 5,000 reports/s",
        measure=_measure_reports,
    ),
    Benchmark(
        id="P9",
        title="Process group, warm: `fit()` called until the train function runs on all ranks, gloo up",
        target="2 ranks at most 40 ms, 4 ranks at most 80 ms",
        measure=_measure_starts,
    ),
    Benchmark(
        id="P11",
        title="Process group: a rank is killed with SIGKILL until the train function runs again on all ranks",
        target="at most 120 ms",
        measure=_measure_recovery,
    ),
)
