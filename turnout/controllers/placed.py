"""What a process that a controller has made a rank does around the train function, the same however it came there."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from turnout.controllers.travel import loads
from turnout.controllers.wire import WireChannel
from turnout.controllers.work import Work
from turnout.environment import WORKER_VARIABLE
from turnout.session.events import Failed, RankInfo

__all__ = [
    "fill_main",
    "forget_exits",
    "is_in_users_code",
    "rank_variables",
    "received",
    "show_warnings",
    "take_empty_main",
    "take_streams",
]

_PACKAGE = __name__.partition(".")[0]
_OWN_ROOMS = tuple(f"{_PACKAGE}.{room}." for room in ("controllers", "runtime", "session", "storage", "trainer"))


def take_streams(output: int) -> None:
    """Print to the descriptor ``output``, which is closed, and read from nothing."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    for name, handle in (("stdout", 1), ("stderr", 2)):
        stream = os.fdopen(handle, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def show_warnings() -> None:
    """Turnout's own warnings go to the rank's standard error, which the driver shows, whatever it has configured."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(levelname)s turnout: %(message)s"))
    handler.addFilter(lambda record: not logging.root.hasHandlers())  # else the train function has configured them
    logging.getLogger(_PACKAGE).addHandler(handler)


def rank_variables(ranks: RankInfo) -> dict[str, str]:
    """The variables by which libraries know a rank, and Turnout one of its own."""
    return {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_RANK": str(ranks.local_rank),
        "LOCAL_WORLD_SIZE": str(ranks.local_world_size),
        "NODE_RANK": str(ranks.node_rank),
        WORKER_VARIABLE: "1",
    }


def take_empty_main() -> None:
    """The user's script is not imported again: what it defines comes by value, into an empty module."""
    sys.modules["__main__"] = types.ModuleType("__main__")


def forget_exits() -> None:
    """What this process would do at its end is not a rank's to do; the train function's own is done at the rank's end.

    Finalizers, as of temporary folders, register themselves with the first one, which may have been an earlier one.
    """
    atexit._clear()
    finalizers: Any = weakref.finalize  # its registry has no public name
    for each in list(finalizers._registry):
        each.atexit = False
    finalizers._registered_with_atexit = False


def received(
    data: bytes, channel: WireChannel, told_of_import: Callable[[ImportError], str] | None = None
) -> Work | None:
    """The work that this rank was sent; None if it cannot be received, which is told as the rank's failure.

    Args:
        data: as `turnout.controllers.work` packs it.
        channel: the rank's.
        told_of_import: what to say of a module that is not there; None for Python's own words.
    """
    try:
        work: Work = loads(data)
    except Exception as error:  # whatever the import of a module of the user's raises
        failure = error
        if told_of_import is not None and isinstance(error, ImportError):
            named = ModuleNotFoundError if isinstance(error, ModuleNotFoundError) else ImportError
            failure = named(told_of_import(error), name=error.name, path=error.path).with_traceback(error.__traceback__)
        failure.add_note("raised on the rank while the train function was received, before it was called")
        channel.publish(Failed(channel.ranks.rank, failure, "while the train function was received"))
        return None
    return work


def fill_main(function: types.FunctionType | None) -> None:
    """What the function uses of the user's script stands in the rank's own ``__main__``, where pickle looks for it.

    So the rank's children, such as a pool's, can be sent what is defined there.
    """
    if function is not None and function.__module__ == "__main__":
        given = {name: value for name, value in function.__globals__.items() if not name.startswith("__")}
        vars(sys.modules["__main__"]).update(given)


def is_in_users_code(frame: types.FrameType | None, below: types.CodeType) -> bool:
    """Whether the train function is being run, and nothing of Turnout's that it has called.

    Args:
        frame: the innermost of the thread that runs it.
        below: the code whose frame leads to it.
    """
    are_ours = []
    while frame is not None and frame.f_code is not below:
        are_ours.append(frame.f_globals.get("__name__", "").startswith(_OWN_ROOMS))
        frame = frame.f_back
    while are_ours and are_ours[-1]:  # what leads to the train function
        are_ours.pop()
    return bool(are_ours) and not any(are_ours)
