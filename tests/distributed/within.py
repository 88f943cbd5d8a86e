"""What ranks of the tests run; a module of its own that imports little, since every rank imports it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import turnout
from turnout.collective import barrier, broadcast_from_rank_zero


def rank() -> int:
    return turnout.get_context().get_world_rank()


def skips_a_barrier() -> None:
    barrier()
    if rank() == 0:
        barrier()  # waits


def reports_once_too_often() -> None:
    turnout.report({"step": 0})
    if rank() == 0:
        turnout.report({"step": 1})  # waits


def returns_early() -> None:
    if rank() == 0:
        broadcast_from_rank_zero(1)  # waits


def leaves_by_sys_exit_0() -> None:
    if rank() == 1:
        sys.exit(0)
    barrier()  # waits


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashed() -> None:
    import faulthandler

    faulthandler.disable()
    ctypes.string_at(0)


def left() -> None:
    os._exit(3)


def left_as_if_well() -> None:
    os._exit(0)


class TwoArgumentsError(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


class LockedError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class RefusesToTravelError(Exception):
    def __setstate__(self, state: object) -> None:
        raise RuntimeError("not here")

    def __reduce__(self) -> Any:
        return type(self), ("never",), {"a": 1}


def _raise_two_arguments() -> None:
    raise TwoArgumentsError(7, "odd")


def _raise_locked() -> None:
    raise LockedError("it holds a lock")


def _raise_mute() -> None:
    raise MuteError("said nothing")


def _raise_refuses() -> None:
    raise RefusesToTravelError("stays here")


def _raise_group() -> None:
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])


def _raise_with_cause() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise RuntimeError("outer") from error


def _raise_stop() -> None:
    raise StopIteration("too far")


def _raise_local_class() -> None:
    class LocalError(Exception):
        pass

    raise LocalError("of a function's own")


def _raise_os_error() -> None:
    Path("/does/not/exist").read_text()
