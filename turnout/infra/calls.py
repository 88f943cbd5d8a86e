"""One call of a remote function: what it is, where it goes, and what is known of it until it has ended.

`Workers` is the seam: in this process, simulated in it, or on Ray, workers are given parts and give back replies; what
the parts and the replies mean is said once, above, in `dispatch`, `collect` and `remote`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnout.infra.collect import Reply
from turnout.infra.dispatch import Part

__all__ = ["ENDED", "REMOTE", "Call", "ItemSource", "Pending", "Workers", "plain_function", "run_part"]


@dataclass(slots=True)
class Call:
    """A call that was made.

    Args:
        name: of the method.
        label: of class and method, for people.
        group: that is called; None in this process.
        caller: the line that has made it.
        timeout_s: for all of it; None for no limit.
        was_told: whether the notifier knows that it has failed.
        was_reported: whether the program knows that it has failed unread.
    """

    name: str
    label: str
    group: str | None
    caller: str
    timeout_s: float | None = None
    was_told: bool = False
    was_reported: bool = False
    deadline: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = None if self.timeout_s is None else time.monotonic() + self.timeout_s


class Pending(ABC):
    """The replies of one call, which may have still to come.

    Args:
        call: that was made.
    """

    is_remote: bool = False
    """Whether the values are elsewhere, and can be fetched from there by other workers."""

    def __init__(self, call: Call) -> None:
        self.call = call

    @abstractmethod
    def replies(self, deadline: float | None, places: Sequence[int] | None) -> list[Reply]:
        """All replies, with the values of some.

        Args:
            deadline: on the monotonic clock.
            places: of the replies whose values are wanted; None for all.

        Raises:
            WorkerGroupError: a worker has failed, as the error that the caller is told.
            TimeoutError: not all have come in time.
        """

    @abstractmethod
    def is_done(self) -> bool:
        """Whether no reply has still to come, or one is a failure."""

    def failure(self) -> BaseException | None:
        """The error of a call that has failed by now."""
        if not self.is_done():
            return None
        try:
            self.replies(time.monotonic(), [])
        except Exception as error:  # what it was is what is asked for
            return error
        return None

    def known_failure(self) -> BaseException | None:
        """The error of a call that is known to have failed without asking anyone."""
        return None

    def gathered(self, replies: list[Reply]) -> tuple[list[Reply], bool]:
        """The replies of all processes that run the same program, and whether those are more."""
        return replies, False


class ItemSource(ABC):
    """What iterators on the workers give, one step after another."""

    @abstractmethod
    def step(self, call: Call) -> tuple[Pending, list[int]]:
        """Ask for the next item of every iterator.

        Returns:
            The replies to come, of which those are marked `ENDED` that are no items, and the ranks that give them.
        """

    @abstractmethod
    def close(self) -> None:
        """Nobody asks any more."""


class Workers(ABC):
    """The workers of one object.

    Args:
        size: how many there are.
    """

    takes_later: bool = False
    """Whether values that are computed elsewhere can be passed to them."""

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def own_rank(self) -> int | None:
        """The one that is this process, where every rank runs the program; else None."""
        return None

    @abstractmethod
    def submit(self, target: Any, call: Call, parts: Sequence[Part], ranks: Sequence[int]) -> Pending:
        """Have some of them run their parts.

        Args:
            target: the object that was called.
            call: that is made.
            parts: one for each of ``ranks``.
            ranks: of the workers.
        """

    @abstractmethod
    def iterator(self, ranks: Sequence[int], call: Call) -> ItemSource:
        """Begin to iterate on some of them."""

    def close(self) -> None:  # noqa: B027  # most have nothing to free
        """Free what they hold."""


ENDED = -1
"""In the place of a reply's rows: the worker's iterator has ended."""

REMOTE = "__turnout_remote__"
"""The attribute by which a function is known as remote: its `RemoteMethod`."""


def plain_function(kind: type, name: str) -> Callable[..., Any]:
    """A method as its class has it, without what makes it remote."""
    function: Any = getattr(kind, name)
    method = getattr(function, REMOTE, None)
    plain: Callable[..., Any] = function if method is None else method.function
    return plain


def run_part(function: Callable[..., Any], instance: Any, part: Part) -> Reply:
    """What a worker does with its part."""
    value = function(instance, *part.args, **part.kwargs)
    return Reply(value, part.num_items, part.num_copies)
