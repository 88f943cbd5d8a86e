"""P17: a call of `turnout.infra` on 8 actors, with slices of a list and the results put together.

All sides are in one process and on one cluster, in turn: the floor is `ray.get` of 8 bare calls with slices that were
cut before, the peer is the same program ported by hand to plain actors.
"""

from __future__ import annotations

from functools import partial

from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, interleave, ratios
from benchmarks.processes import OWN_PYTHON, answer_of

__all__ = ["BENCHMARK"]

_NUM_ACTORS = 8
_NUM_CALLS = 100
_NUM_ROUNDS = 10  # within a program


def _measure(settings: Settings) -> Outcome:
    counts = map(str, (_NUM_ACTORS, _NUM_CALLS, settings.rounds(_NUM_ROUNDS)))
    program = partial(answer_of, OWN_PYTHON, "-m", "benchmarks.programs.infra_calls", *counts)
    figures = interleave({"all": program}, rounds=settings.rounds(5), warm_ups=0)["all"]

    def series(name: str, role: Role, figure: str) -> Series:
        return Series(name=name, role=role, unit="us", runs=[each[figure] for each in figures])

    turnout = series("a call on 8 actors, sliced and flattened", Role.TURNOUT, "turnout_us")
    ported = series("the same by hand on plain actors", Role.PEER, "ported_us")
    bare = series("`ray.get` of 8 bare calls", Role.FLOOR, "bare_us")
    over_bare = ratios("Turnout over bare calls", turnout, bare)
    return Outcome(
        series=[turnout, ported, bare, over_bare, ratios("Turnout over the port", turnout, ported)],
        checks=[Check.at_most(over_bare, 1.2)],
    )


BENCHMARK = Benchmark(
    id="P17",
    title="infra: a call on 8 actors with slice and collect",
    target="at most 1.2 times `ray.get` of 8 bare calls",
    measure=_measure,
)
