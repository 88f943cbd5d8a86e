"""P5, P6, P7, P7L, P10 and P16: ranks on a Ray cluster: how fast they start, report, and are back after one was killed.

Each side is a process of its own, with a cluster of its own of one node, that has done the same before it is timed. The
floor is written out in `benchmarks.floor_ray`: actors that do nothing but what the ranks need. Starts are timed in turn
with the floor's on one cluster, since two clusters differ by more than the two do.
"""

from __future__ import annotations

import functools
from functools import partial

from benchmarks import peer
from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, differences, interleave, ratios
from benchmarks.processes import OWN_PYTHON, answer_of

__all__ = ["BENCHMARKS"]

Figures = dict[str, list[dict[str, float]]]

_NUM_ROUNDS = 3  # within a program
_NUM_REPORTS = 10_000  # of all ranks together
_NUM_PEERS_REPORTS = 5
_NUM_LINES = 100_000
_SIZES = (8, 32)
_UNITS = {"entered_ms": "ms", "whole_ms": "ms", "again_ms": "ms", "floor_ms": "ms"}


def _turnout(*arguments: str | int) -> dict[str, float]:
    figures: dict[str, float] = answer_of(
        OWN_PYTHON, "-m", "benchmarks.programs.ray_ranks", "turnout", *map(str, arguments)
    )
    return figures


def _peer(*arguments: str | int) -> dict[str, float]:
    figures: dict[str, float] = peer.answer_of("-m", "benchmarks.programs.ray_ranks", "peer", *map(str, arguments))
    return figures


def _floor(*arguments: str | int) -> dict[str, float]:
    figures: dict[str, float] = answer_of(OWN_PYTHON, "-m", "benchmarks.floor_ray", *map(str, arguments))
    return figures


def _series(name: str, role: Role, figures: list[dict[str, float]], figure: str) -> Series:
    return Series(name=name, role=role, unit=_UNITS.get(figure, "/s"), runs=[each[figure] for each in figures])


@functools.cache
def _starts(settings: Settings) -> Figures:
    """Of P5 and P6, which look at the same runs."""
    return _beside_the_floor("start", settings)


def _beside_the_floor(what: str, settings: Settings) -> Figures:
    num_rounds = settings.rounds(_NUM_ROUNDS)
    sides = {"turnout": partial(_turnout, what, 2, num_rounds), "peer": partial(_peer, what, 2, 1)}
    return interleave(sides, rounds=settings.rounds(5), warm_ups=0)  # each program warms itself up


def _floor_of_starts(figures: Figures) -> Series:
    return _series("bare actors, torch and gloo", Role.FLOOR, figures["turnout"], "floor_ms")


def _judged_by_floor(turnout: Series, ray_train: Series, floor: Series, bound: float) -> Outcome:
    over_floor = ratios("Turnout over the floor", turnout, floor)
    return Outcome(
        series=[turnout, ray_train, floor, over_floor, ratios("peer over Turnout", ray_train, turnout)],
        checks=[Check.at_most(over_floor, bound)],
    )


def _measure_starts(settings: Settings) -> Outcome:
    figures = _starts(settings)
    turnout = _series(
        "`fit()` called until all are in the train function", Role.TURNOUT, figures["turnout"], "entered_ms"
    )
    ray_train = _series("the same", Role.PEER, figures["peer"], "entered_ms")
    return _judged_by_floor(turnout, ray_train, _floor_of_starts(figures), 1.15)


def _measure_whole(settings: Settings) -> Outcome:
    figures = _starts(settings)
    turnout = _series("whole `fit()`", Role.TURNOUT, figures["turnout"], "whole_ms")
    ray_train = _series("whole `fit()`", Role.PEER, figures["peer"], "whole_ms")
    floor = _floor_of_starts(figures)
    over_floor = differences("whole `fit()`, less the floor", turnout, floor)
    return Outcome(
        series=[turnout, over_floor, ray_train, floor, ratios("peer over Turnout", ray_train, turnout)],
        checks=[Check.at_most(over_floor, 500)],
    )


def _measure_reports(settings: Settings) -> Outcome:
    sides = {
        "turnout": partial(_turnout, "small", 2, _NUM_REPORTS),
        "floor": partial(_floor, "reports", 2, _NUM_REPORTS),
        "peer": partial(_peer, "small", 2, _NUM_PEERS_REPORTS),
    }
    figures = interleave(sides, rounds=settings.rounds(5), warm_ups=0)
    turnout = _series("`report` in a loop", Role.TURNOUT, figures["turnout"], "per_s")
    ray_train = _series("`report` in a loop", Role.PEER, figures["peer"], "per_s")
    floor = _series("a bare exchange of two actors by sockets", Role.FLOOR, figures["floor"], "per_s")
    comparisons = [ratios("Turnout over peer", turnout, ray_train), ratios("Turnout over the floor", turnout, floor)]
    return Outcome(series=[turnout, ray_train, floor, *comparisons], checks=[Check.at_least(turnout, 1_200)])


def _measure_lines(settings: Settings) -> Outcome:
    sides = {"turnout": partial(_turnout, "lines", 2, _NUM_LINES)}
    figures = interleave(sides, rounds=settings.rounds(5), warm_ups=0)
    printed = _series("reports/s, the other rank prints", Role.TURNOUT, figures["turnout"], "printed_per_s")
    filed = _series("reports/s, it writes them to a file", Role.FLOOR, figures["turnout"], "filed_per_s")
    kept = ratios("printed over written", printed, filed)
    return Outcome(series=[printed, filed, kept], checks=[Check.at_least(kept, 0.8)])


def _measure_recovery(settings: Settings) -> Outcome:
    figures = _beside_the_floor("recover", settings)
    turnout = _series("killed until all are in the train function", Role.TURNOUT, figures["turnout"], "again_ms")
    ray_train = _series("the same", Role.PEER, figures["peer"], "again_ms")
    return _judged_by_floor(turnout, ray_train, _floor_of_starts(figures), 1.25)


def _measure_small(settings: Settings) -> Outcome:
    sides = {"turnout 2": partial(_turnout, "small", 2, _NUM_REPORTS // 2)}
    for size in _SIZES:
        sides |= {
            f"turnout {size}": partial(_turnout, "small", size, _NUM_REPORTS // size),
            f"peer {size}": partial(_peer, "small", size, 0),
        }
    figures = interleave(sides, rounds=settings.rounds(5), warm_ups=0)

    few = _series("reports, 2 workers", Role.TURNOUT, figures["turnout 2"], "per_s")
    of_turnout, of_peer, floors, comparisons, checks = [few], [], [], [], []
    for size in _SIZES:
        turnout = _series(f"start, {size} workers", Role.TURNOUT, figures[f"turnout {size}"], "entered_ms")
        rate = _series(f"reports, {size} workers", Role.TURNOUT, figures[f"turnout {size}"], "per_s")
        ray_train = _series(f"start, {size} workers", Role.PEER, figures[f"peer {size}"], "entered_ms")
        floor = _series(f"bare actors, {size} of them", Role.FLOOR, figures[f"turnout {size}"], "floor_ms")
        over_floor = ratios(f"Turnout over the floor, {size} workers", turnout, floor)
        kept = [many * size / (few_ * 2) for many, few_ in zip(rate.runs, few.runs, strict=True)]
        scaling = Series(name=f"reports x workers, {size} over 2", role=Role.COMPARISON, unit="x", runs=kept)
        of_turnout += [turnout, rate]
        of_peer.append(ray_train)
        floors.append(floor)
        comparisons += [over_floor, ratios(f"peer over Turnout, {size} workers", ray_train, turnout), scaling]
        checks += [Check.at_most(over_floor, 1.2), Check.at_least(scaling, 1.0)]
    return Outcome(series=[*of_turnout, *of_peer, *floors, *comparisons], checks=checks)


BENCHMARKS = (
    Benchmark(
        id="P5",
        title="Ray, warm: `fit()` called until the train function runs on 2 ranks, gloo up",
        target="at most 1.15 times bare actors that do the same",
        measure=_measure_starts,
    ),
    Benchmark(
        id="P6",
        title="Ray, warm: whole `fit()` of a trivial function on 2 ranks, gloo up",
        target="at most bare actors' start + 500 ms",
        measure=_measure_whole,
    ),
    Benchmark(
        id="P7",
        title="Ray, 2 ranks: metrics-only `report` in a loop",
        target="at least 1,200 reports/s",
        measure=_measure_reports,
    ),
    Benchmark(
        id="P7L",
        title="Ray, 2 ranks: metrics-only `report` while the other rank prints 100,000 lines",
        target="no slower than the noise: 0.8 of the reports when it writes the lines to a file of its own",
        measure=_measure_lines,
    ),
    Benchmark(
        id="P10",
        title="Ray: a rank is killed with SIGKILL until the train function runs again on 2 ranks, gloo up",
        target="at most 1.25 times the start of bare actors",
        measure=_measure_recovery,
    ),
    Benchmark(
        id="P16",
        title="Ray: start of 8 and 32 workers of 0.01 CPU without torch, and their metrics-only reports",
        target="at most 1.2 times bare actors at each size; reports/s fall no faster than 1/N",
        measure=_measure_small,
    ),
)
