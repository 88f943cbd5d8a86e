"""F1: what a report each round costs XGBoost, on 2 ranks of Ray's and on 2 forked ones."""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave
from benchmarks.processes import OWN_PYTHON, answer_of

__all__ = ["BENCHMARK"]

_MOST_S = 1.0
_NUM_TURNS = 5  # within a program
_TRACKS = ("ray", "process")


def _measure(settings: Settings) -> Outcome:
    program = partial(answer_of, OWN_PYTHON, "-m", "benchmarks.programs.boosting")
    sides = {track: partial(program, track, str(settings.rounds(_NUM_TURNS))) for track in _TRACKS}
    figures = interleave(sides, rounds=settings.rounds(5), warm_ups=0)  # each program warms itself up

    def series(name: str, track: str, role: Role, figure: str) -> Series:
        return Series(name=f"{name}, {track}", role=role, unit="s", runs=[each[figure] for each in figures[track]])

    reports = [series("100 reports and a checkpoint", track, Role.TURNOUT, "reports_s") for track in _TRACKS]
    with_them = [series("100 rounds with them", track, Role.TURNOUT, "with_s") for track in _TRACKS]
    bare = [series("100 rounds with no callback", track, Role.FLOOR, "without_s") for track in _TRACKS]
    return Outcome(series=[*reports, *with_them, *bare], checks=[Check.at_most(each, _MOST_S) for each in reports])


BENCHMARK = Benchmark(
    id="F1",
    title="XGBoost, 2 ranks: 100 rounds with a report each, and the model at the end",
    target="the reports cost at most 1 s in all, on Ray's ranks as on forked ones",
    measure=_measure,
)
