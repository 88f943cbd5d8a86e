"""Where an exception comes from in the user's own code."""

from __future__ import annotations

import traceback
from types import TracebackType

from turnout.controllers.stacks import is_users

__all__ = ["is_turnouts", "place_of", "users_traceback"]

_PACKAGE = __name__.partition(".")[0]
_CONTRACT = f"{_PACKAGE}.testing.contract"  # its train functions stand for a user's


def users_traceback(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of Turnout's that lead to the user's first one."""
    link = error.__traceback__
    while link is not None and _is_ours(link):
        link = link.tb_next
    return link or error.__traceback__


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own that the exception passed through, as ``"file:line in function"``.

    If it passed through none, since what trains is an installed package, the innermost that is not Turnout's.
    """
    users = others = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        if is_users(frame.f_code.co_filename):
            users = place
        elif not is_turnouts(frame.f_globals.get("__name__", "")):
            others = place
    return users or others or "unknown place"


def _is_ours(link: TracebackType) -> bool:
    return is_turnouts(link.tb_frame.f_globals.get("__name__", ""))


def is_turnouts(module: str) -> bool:
    """Whether a module of this name is Turnout's own, and not the user's."""
    return f"{module}.".startswith(f"{_PACKAGE}.") and not module.startswith(_CONTRACT)
