"""What a benchmark is made of: sides that run in turn, the series that they give, and the checks of a target.

The sides run interleaved (A B C, A B C, ...) and are compared round by round, so that a machine that slows down for a
while slows all of them alike. What is published are medians, with the least and the greatest value as the spread.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

__all__ = ["Benchmark", "Check", "Outcome", "Role", "Series", "Settings", "differences", "interleave", "ratios"]

Taken = TypeVar("Taken")


class Role(Enum):
    """Who a series is of."""

    TURNOUT = "Turnout"
    PEER = "peer"
    FLOOR = "floor"
    COMPARISON = "comparison"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The values of one quantity, one a round.

    Args:
        name: what was measured.
        role: of whom.
        unit: "ms", "us", "MB", "s", or "x" for a ratio.
        runs: at least one value, in the order of the rounds.
    """

    name: str
    role: Role
    unit: str
    runs: Sequence[float]

    @property
    def median(self) -> float:
        """The value that stands for the series."""
        return statistics.median(self.runs)

    @property
    def least(self) -> float:
        """The lower end of the spread."""
        return min(self.runs)

    @property
    def greatest(self) -> float:
        """The upper end of the spread."""
        return max(self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One clause of a target, and whether it is met.

    Args:
        text: the clause, with its bound.
        measured: what was found.
        met: the verdict.
    """

    text: str
    measured: str
    met: bool

    @classmethod
    def at_most(cls, series: Series, bound: float) -> Check:
        """The series' median is no greater than ``bound``."""
        text = f"{series.name}: at most {bound:g} {series.unit}"
        return cls(text=text, measured=f"{series.median:.3g} {series.unit}", met=series.median <= bound)

    @classmethod
    def at_least(cls, series: Series, bound: float) -> Check:
        """The series' median is no less than ``bound``."""
        text = f"{series.name}: at least {bound:g} {series.unit}"
        return cls(text=text, measured=f"{series.median:.3g} {series.unit}", met=series.median >= bound)

    @classmethod
    def none_of(cls, text: str, found: Sequence[str]) -> Check:
        """Nothing that must not be there was found."""
        return cls(text=text, measured=", ".join(found) or "none", met=not found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a benchmark found.

    Args:
        series: what was measured, and what was made of it.
        checks: the target's clauses; one that is not listed is not judged.
    """

    series: Sequence[Series]
    checks: Sequence[Check]

    @property
    def met(self) -> bool:
        """Whether every clause is met."""
        return all(check.met for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How thoroughly to measure.

    Args:
        quick: a few rounds, to see that a benchmark works; its figures are not for publication.
    """

    quick: bool = False

    def rounds(self, usual: int) -> int:
        """How many rounds to run, where ``usual``, at least 5, is the number for publication."""
        return 2 if self.quick else usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One row of the table of targets.

    Args:
        id: the row's number, such as "P1".
        title: what is measured.
        target: what Turnout must reach, in words.
        measure: measures it.
    """

    id: str
    title: str
    target: str
    measure: Callable[[Settings], Outcome]


def interleave(sides: Mapping[str, Callable[[], Taken]], *, rounds: int, warm_ups: int = 1) -> dict[str, list[Taken]]:
    """Call the sides in turn, round after round.

    Args:
        sides: by name; each measures once and returns what it took.
        rounds: how many times each is called.
        warm_ups: how many rounds come before them and are not counted: they compile bytecode and fill the page cache.

    Returns:
        What each side returned, in the order of the rounds.
    """
    taken: dict[str, list[Taken]] = {name: [] for name in sides}
    for number in range(-warm_ups, rounds):
        for name, side in sides.items():
            each = side()
            if number >= 0:
                taken[name].append(each)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return taken


def ratios(name: str, over: Series, under: Series) -> Series:
    """``over`` divided by ``under``, round by round."""
    runs = tuple(a / b for a, b in zip(over.runs, under.runs, strict=True))
    return Series(name=name, role=Role.COMPARISON, unit="x", runs=runs)


def differences(name: str, whole: Series, part: Series) -> Series:
    """``whole`` minus ``part``, round by round; it is of whom ``whole`` is."""
    runs = tuple(a - b for a, b in zip(whole.runs, part.runs, strict=True))
    return Series(name=name, role=whole.role, unit=whole.unit, runs=runs)
