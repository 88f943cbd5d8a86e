"""Which rank the calling code is: by the environment, but where ranks take turns in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

from turnout.environment import rank_of_environment

__all__ = ["Turn", "current_rank", "current_turn", "taking_the_turn_of"]


class Turn(NamedTuple):
    """A worker whose code is running.

    Args:
        rank: of it.
        group: that it is of; None for a process that runs the program itself.
        world_size: workers of its object, or processes that run the program.
    """

    rank: int
    group: str | None = None
    world_size: int = 1


_turn: ContextVar[Turn | None] = ContextVar("turnout_infra_turn", default=None)


def current_rank() -> int:
    """The rank of the calling code in its group; 0 where nobody says so."""
    turn = _turn.get()
    return rank_of_environment() if turn is None else turn.rank


def current_turn() -> Turn | None:
    """Whose turn it is, where ranks take turns in this process."""
    return _turn.get()


@contextlib.contextmanager
def taking_the_turn_of(turn: Turn) -> Iterator[None]:
    """Be a worker for the length of the block."""
    token = _turn.set(turn)
    try:
        yield
    finally:
        _turn.reset(token)
