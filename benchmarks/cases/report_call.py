"""P3: an in-process `report({"loss": x})` with logging at WARNING.

Both sides are timed in silence. What they take when each logs as it comes, a line for every report, stands beside it.
The ratio to the peer is shown and not judged: fifty times was hoped for when its report was thought to take 75 us, and
a fiftieth of what it takes here in silence is less than copying the dict.
"""

from __future__ import annotations

from functools import partial

from benchmarks import peer
from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS, answer_of

__all__ = ["BENCHMARK"]


def _measure(settings: Settings) -> Outcome:
    program = PROGRAMS / "report_calls.py"
    figures = interleave(
        {
            "turnout": partial(answer_of, OWN_PYTHON, program, "turnout"),
            "peer": partial(peer.answer_of, program, "peer"),
            "floor": partial(answer_of, OWN_PYTHON, program, "floor"),
            "turnout, logging": partial(answer_of, OWN_PYTHON, program, "turnout", "--logging"),
            "peer, logging": partial(peer.answer_of, program, "peer", "--logging"),
        },
        rounds=settings.rounds(7),
        warm_ups=0,  # each program warms itself up
    )

    def series(side: str, name: str, role: Role, figure: str = "median_ns") -> Series:
        return Series(name=name, role=role, unit="us", runs=[each[figure] / 1e3 for each in figures[side]])

    turnout = series("turnout", "median of 100,000 calls", Role.TURNOUT)
    mean = series("turnout", "mean of 100,000 calls in a bare loop", Role.TURNOUT, "mean_ns")
    logging_turnout = series("turnout, logging", "median, logging as it comes", Role.TURNOUT)
    ray_train = series("peer", "local mode, median of 100,000 calls", Role.PEER)
    logging_ray_train = series("peer, logging", "local mode, median, logging as it comes", Role.PEER)
    floor = series("floor", "ContextVar, type check, copy", Role.FLOOR)
    advantage = ratios("peer over Turnout", ray_train, turnout)
    comparisons = [
        advantage,
        ratios("peer over Turnout, both logging", logging_ray_train, logging_turnout),
        ratios("Turnout over floor", turnout, floor),
    ]
    return Outcome(
        series=[turnout, mean, logging_turnout, ray_train, logging_ray_train, floor, *comparisons],
        checks=[Check.at_most(turnout, 1.0)],
    )


BENCHMARK = Benchmark(
    id="P3",
    title='In-process `report({"loss": x})`, logging at WARNING',
    target="at most 1 us; the ratio to the peer is shown",
    measure=_measure,
)
