"""What a caller is told of a call that has failed elsewhere: the error's own class, with the place of the call."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

from turnout.combined_error import combine, text_of
from turnout.controllers.stacks import is_users
from turnout.errors import WorkerGroupError

__all__ = ["CallTimeoutError", "Origin", "caller_line", "told_error", "users_traceback"]


class CallTimeoutError(WorkerGroupError, TimeoutError):
    """Not all workers have answered in time; the text names those that have not, and shows where they are."""

    call: Any = None
    """That was made, where this process has made it."""
    is_final: bool = False
    """Whether the time that the method itself has is over, and not that of one wait."""


class Origin(NamedTuple):
    """Where an error was raised.

    Args:
        method: such as "Model.train_step".
        group: of the worker; None in this process.
        rank: of the worker.
        node: its address.
        pid: its process.
        traceback: as Python shows it there; empty where the error has it itself.
        caller: the driver's line that made the call, as "file:line".
    """

    method: str
    group: str | None
    rank: int
    node: str
    pid: int
    traceback: str
    caller: str

    def __str__(self) -> str:
        group = "" if self.group is None else f" of group {self.group!r}"
        return f"{self.method} on rank {self.rank}{group} (pid {self.pid} on node {self.node})"


def caller_line() -> str:
    """The innermost line of the user's own that has led here, as "file:line"; else of what is not Turnout's."""
    frame = sys._getframe(1)
    other = None
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            return f"{_shown(name)}:{frame.f_lineno}"
        if other is None and not frame.f_globals.get("__name__", "").startswith("turnout."):
            other = f"{_shown(name)}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return other or "unknown"


def users_traceback(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of Turnout's that lead to the user's first one."""
    link = error.__traceback__
    while link is not None and link.tb_frame.f_globals.get("__name__", "").startswith("turnout."):
        link = link.tb_next
    return link or error.__traceback__


def told_error(
    cause: BaseException, origin: Origin, failures: Mapping[int, BaseException] | None = None
) -> WorkerGroupError:
    """The error for the caller: of the cause's class and of `WorkerGroupError`, with all there is to say in its text.

    Args:
        cause: what was raised.
        origin: where.
        failures: of every rank that has failed, by rank.
    """
    error = combine(cause, dict(failures or {origin.rank: cause}))
    told = f"[turnout driver caller: {origin.caller}] {text_of(cause)}"
    if origin.traceback:
        told += f"\n\nin {origin}, where the traceback was:\n{origin.traceback}"
    told_class: Any = _told_class  # a class is hashable, which the type of its instances hides
    error.__class__ = told_class(type(error))
    error.told = told  # type: ignore[attr-defined]  # of the class that it has now
    error.error_message = told
    error.add_note(f"raised in {origin}")
    for rank, other in (failures or {}).items():
        if other is not cause:
            error.add_note(
                f"rank {rank} has failed too: {type(other).__name__}: {text_of(other).partition(chr(10))[0]}"
            )
    return error.with_traceback(users_traceback(cause) if not origin.traceback else None)


@functools.lru_cache(maxsize=256)
def _told_class(kind: Any) -> Any:  # Any: classes made here, whose bases are known at run time alone
    namespace = {
        "__str__": lambda self: self.told,
        "__reduce_ex__": lambda self, protocol: (_told_again, (kind.__reduce_ex__(self, protocol), self.told)),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind,), namespace)


def _told_again(reduced: tuple[Any, ...], text: str) -> Any:
    """The error of a pickle."""
    build, arguments, *rest = reduced
    error = build(*arguments)
    if rest and rest[0]:
        error.__dict__.update(rest[0])
    told_class: Any = _told_class
    error.__class__ = told_class(type(error))
    error.told = error.error_message = text
    return error


@functools.lru_cache(maxsize=1024)
def _shown(file: str) -> str:
    """A file's path, from the working directory where it lies below it."""
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):
        return file
    return file if relative.startswith("..") else relative
