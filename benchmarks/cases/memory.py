"""P18: the memory of a driver with an in-process trainer and no torch."""

from __future__ import annotations

from functools import partial

from benchmarks import peer
from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS, answer_of

__all__ = ["BENCHMARK"]


def _measure(settings: Settings) -> Outcome:
    program = PROGRAMS / "after_running.py"
    answers = interleave(
        {
            "turnout": partial(answer_of, OWN_PYTHON, program, PROGRAMS / "fit_turnout.py"),
            "peer": partial(peer.answer_of, program, PROGRAMS / "fit_peer.py"),
            "floor": partial(answer_of, OWN_PYTHON, program, "-c", "pass"),
        },
        rounds=settings.rounds(5),
    )

    def series(side: str, name: str, role: Role) -> Series:
        return Series(name=name, role=role, unit="MB", runs=[each["peak_rss_mb"] for each in answers[side]])

    turnout = series("turnout", "peak RSS of a process that has called `fit()`", Role.TURNOUT)
    ray_train = series("peer", "local mode, the same", Role.PEER)
    floor = series("floor", "bare Python", Role.FLOOR)
    advantage = ratios("peer over Turnout", ray_train, turnout)
    heavy = sorted({name for answer in answers["turnout"] for name in answer["heavy_modules"]})
    return Outcome(
        series=[turnout, ray_train, floor, advantage],
        checks=[Check.at_most(turnout, 40), Check.none_of("heavy modules in `sys.modules`: none", heavy)],
    )


BENCHMARK = Benchmark(
    id="P18",
    title="Memory of a driver with an in-process trainer and no torch",
    target="at most 40 MB RSS",
    measure=_measure,
)
