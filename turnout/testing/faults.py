"""Making the program fail at a named point: `armed` in a test's own process, `with_faults` on the ranks of a run, and
`TURNOUT_FAULTS` in programs that it starts.

The points are where `turnout.failpoints.failpoint` is called: ``"report"`` is every call of `turnout.report`, and
`turnout.storage.commit.FAILPOINTS` lists a commit's.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from turnout import failpoints
from turnout.checks import check_choice, check_integer, check_number, check_text

__all__ = ["TURNOUT_FAULTS", "Fault", "InjectedError", "arm_from_environment", "armed", "environment", "with_faults"]

TURNOUT_FAULTS = "TURNOUT_FAULTS"
"""The environment variable that `arm_from_environment` reads: faults as `environment` writes them."""

_ACTIONS = ("raise", "kill", "exit", "delay", "short_write", "enospc", "stop")


class InjectedError(OSError):
    """What the action ``raise`` raises: a failure that may pass, as of a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens at a point, and when.

    Args:
        point: the failpoint's name; ``*`` stands for any text.
        action: ``"raise"`` an `InjectedError`; ``"kill"`` the process with SIGKILL; ``"exit"`` it at once with
            status 1; ``"stop"`` it with SIGSTOP; ``"delay"``; ``"short_write"`` half of the data, where the point has
            data; ``"enospc"`` raise what a full disk raises.
        on_hit: the first hit that it strikes at, from 1.
        times: how many hits it strikes at; 0 for all from then on.
        rank: strikes this rank alone; None any.
        delay_s: how long a delay is.
        message: the error's text.

    Example:
        >>> from turnout.failpoints import failpoint
        >>> with armed(Fault(point="commit.before_record", action="raise", message="the network is gone")):
        ...     failpoint("commit.before_record")
        Traceback (most recent call last):
        ...
        turnout.testing.faults.InjectedError: the network is gone
    """

    point: str
    action: str
    on_hit: int = 1
    times: int = 1
    rank: int | None = None
    delay_s: float = 0.0
    message: str = "injected by a test"

    def __post_init__(self) -> None:
        check_text("Fault.point", self.point, "a failpoint's name")
        check_choice("Fault.action", self.action, _ACTIONS)
        check_integer("Fault.on_hit", self.on_hit, at_least=1, remedy="takes a whole number of at least 1")
        check_integer("Fault.times", self.times, at_least=0, remedy="takes a whole number; 0 for every hit")
        check_number("Fault.delay_s", self.delay_s, at_least=0, unit="seconds")


class Faults:
    """Faults that are armed, and how often each point was passed.

    Args:
        faults: in the order in which they strike.
        marks: a folder in which each strike is marked, so that a fault strikes a rank as often as it says over all
            processes; None to count in this one alone.
    """

    def __init__(self, faults: Sequence[Fault], marks: str | None = None) -> None:
        self.hits: list[tuple[str, int | None]] = []
        self._marks = marks
        self._faults = [(fault, re.compile(re.escape(fault.point).replace(r"\*", ".*"))) for fault in faults]
        self._counts = [0] * len(faults)
        self._lock = threading.Lock()

    def strike(self, name: str, rank: int | None, data: bytes | None) -> bytes | None:
        """What `turnout.failpoints` calls."""
        due = []
        with self._lock:
            self.hits.append((name, rank))
            for index, (fault, pattern) in enumerate(self._faults):
                if not pattern.fullmatch(name) or (fault.rank is not None and fault.rank != rank):
                    continue
                if fault.action == "short_write" and data is None:
                    continue
                self._counts[index] += 1
                past = self._counts[index] - fault.on_hit
                if past >= 0 and (not fault.times or past < fault.times) and self._is_left(index, fault, rank):
                    due.append(fault)
        for fault in due:
            data = _act(fault, data)
        return data

    def _is_left(self, index: int, fault: Fault, rank: int | None) -> bool:
        """Mark one more strike, if there is one left."""
        if self._marks is None or not fault.times:
            return True
        for number in range(fault.times):
            with contextlib.suppress(FileExistsError):
                open(os.path.join(self._marks, f"fault-{index}-rank-{rank}-{number}"), "x").close()
                return True
        return False


@contextlib.contextmanager
def armed(*faults: Fault) -> Iterator[Faults]:
    """Arm faults for the length of the block, in this process; what was armed before rests meanwhile.

    With none it only counts: the value's ``hits`` are the points that were passed, with their ranks.
    """
    active = Faults(faults)
    previous = failpoints.arm(active.strike)
    try:
        yield active
    finally:
        failpoints.arm(previous)


@contextlib.contextmanager
def with_faults(function: Callable[..., Any], faults: Sequence[Fault]) -> Iterator[Callable[..., Any]]:
    """The function with faults armed wherever it runs, also on ranks of other processes.

    Args:
        function: a train function, for example.
        faults: each strikes a rank as often as it says, over all attempts that the block makes.

    Yields:
        A function that takes the same arguments; `function` itself if there are no faults.
    """
    if not faults:
        yield function
        return
    with tempfile.TemporaryDirectory(prefix="turnout-faults-") as marks:

        @functools.wraps(function)
        def faulty(*arguments: Any) -> Any:  # Any: the user's own
            previous = failpoints.arm(Faults(faults, marks).strike)
            try:
                return function(*arguments)
            finally:
                failpoints.arm(previous)

        yield faulty


def environment(*faults: Fault) -> dict[str, str]:
    """The variable to give a subprocess that calls `arm_from_environment`."""
    return {TURNOUT_FAULTS: json.dumps([asdict(fault) for fault in faults])}


def arm_from_environment(variables: Mapping[str, str] | None = None) -> Faults | None:
    """Arm for the rest of the process what `TURNOUT_FAULTS` says; None if it says nothing.

    Args:
        variables: read in place of the process's own.
    """
    text = (os.environ if variables is None else variables).get(TURNOUT_FAULTS, "")
    if not text.strip():
        return None
    described: list[dict[str, Any]] = json.loads(text)  # Any: the fields of Fault
    active = Faults([Fault(**each) for each in described])
    failpoints.arm(active.strike)
    return active


def _act(fault: Fault, data: bytes | None) -> bytes | None:
    if fault.action == "raise":
        raise InjectedError(fault.message)
    if fault.action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # the signal is on its way; nothing more may happen here
    elif fault.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.05)  # another thread may take the signal, and this one would go on for a moment
    elif fault.action == "exit":
        os._exit(1)
    elif fault.action == "delay":
        time.sleep(fault.delay_s)
    elif fault.action == "short_write" and data is not None:
        return bytes(data[: len(data) // 2])
    return data
