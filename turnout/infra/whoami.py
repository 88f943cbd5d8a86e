"""Which rank the calling code is: by the environment, but where ranks take turns in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from turnout.environment import rank_of_environment

__all__ = ["current_rank", "taking_the_turn_of"]

_turn: ContextVar[int | None] = ContextVar("turnout_infra_turn", default=None)


def current_rank() -> int:
    """The rank of the calling code in its group; 0 where nobody says so."""
    turn = _turn.get()
    return rank_of_environment() if turn is None else turn


@contextlib.contextmanager
def taking_the_turn_of(rank: int) -> Iterator[None]:
    """Be a rank for the length of the block."""
    token = _turn.set(rank)
    try:
        yield
    finally:
        _turn.reset(token)
