"""P4: a training loop that reports each step, over the same loop with no framework."""

from __future__ import annotations

import statistics

from benchmarks.harness import Benchmark, Check, Outcome, Role, Series, Settings, ratios
from benchmarks.processes import OWN_PYTHON, PROGRAMS, answer_of

__all__ = ["BENCHMARK"]

_BOUND = 1.02


def _measure(settings: Settings) -> Outcome:
    # The rounds are inside of the program: loops in one process share what its start decides, such as memory's layout.
    seconds = answer_of(OWN_PYTHON, PROGRAMS / "digits_loops.py", str(settings.rounds(15)))
    of_reports = _compared("a report each step", seconds["before"], seconds["reporting"], seconds["after"])
    of_all = _compared(
        "model and loader prepared, a report each step",
        seconds["before_prepared"],
        seconds["prepared"],
        seconds["after_prepared"],
    )
    return Outcome(series=[*of_reports.series, *of_all.series], checks=[*of_reports.checks, *of_all.checks])


def _compared(name: str, before: list[float], trained: list[float], after: list[float]) -> Outcome:
    """A loop in a trainer, against the mean of the loops without one that ran right before and after it."""
    means = [(a + b) / 2 for a, b in zip(before, after, strict=True)]
    loop = Series(name=name, role=Role.TURNOUT, unit="ms", runs=[each * 1e3 for each in trained])
    floor = Series(name=f"no framework, for: {name}", role=Role.FLOOR, unit="ms", runs=[each * 1e3 for each in means])
    overhead = ratios(f"over no framework: {name}", loop, floor)
    noise = Series(
        name="no framework over itself",
        role=Role.COMPARISON,
        unit="x",
        runs=[b / a for a, b in zip(before, after, strict=True)],
    )
    return Outcome(series=[loop, floor, overhead, noise], checks=[_within(overhead, noise)])


def _within(overhead: Series, noise: Series) -> Check:
    """Within the bound, or within how far the middle half of the plain loop's ratios to itself strays from 1."""
    lower, _, upper = statistics.quantiles(noise.runs, n=4)
    allowed = max(_BOUND, 1 + max(1 - lower, upper - 1))
    text = f"{overhead.name}: at most {_BOUND:g} x, or within the loop's own noise ({allowed:.3f} x)"
    return Check(text=text, measured=f"{overhead.median:.4f} x", met=overhead.median <= allowed)


BENCHMARK = Benchmark(
    id="P4",
    title="In-process training loop (digits MLP, 200 steps), over the same loop with no framework",
    target="at most 1.02, or within the spread of 15 interleaved pairs",
    measure=_measure,
)
