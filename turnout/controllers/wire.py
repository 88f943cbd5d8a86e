"""A rank's way to the coordinator, and the messages that pass on it.

A rank has one line (`turnout.controllers.lines`) for its train function, one on which it can be asked where it is
(`CONTROL`), and one for each `branch`.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from turnout.combined_error import text_of
from turnout.config import PreemptionInfo
from turnout.controllers.lines import Address, Line, connected
from turnout.controllers.stacks import ANSWERING, is_users
from turnout.controllers.travel import dumps, loads, packed_error, traceback_text, unpacked_error
from turnout.errors import ControllerError, UsageError, WorkerGroupError
from turnout.session.channel import ExchangeKind
from turnout.session.events import Failed, Finished, RankInfo, Reported, WorkerEvent

__all__ = [
    "CONTROL",
    "DRIVERS",
    "MAIN",
    "OUTPUT",
    "Address",
    "Break",
    "Hello",
    "Lost",
    "Meet",
    "Noticed",
    "WireChannel",
    "error_of",
    "understood",
    "value_of",
]

logger = logging.getLogger(__name__)

MAIN = "main"
CONTROL = "control"
OUTPUT = "output"
"""Carries what a rank prints, as it is."""
DRIVERS = "drivers"
"""Where every rank runs the driver program, these meet on a lane of their own, also after an attempt has failed."""
_PACKAGE = __name__.partition(".")[0]
# The signal by which a rank's kernel tells it that it is asked for its stacks. A real-time one, since the user's
# program and its libraries have meanings of their own for the classic ones.
_STACK_SIGNAL = signal.SIGRTMIN + 11 if sys.platform == "linux" else signal.SIGIO


class Hello(NamedTuple):
    """A rank's first message on each connection."""

    rank: int
    lane: str


class Meet(NamedTuple):
    """A rank has come to a meeting; its first three parts must be the same on every rank.

    Args:
        tag: what it is doing.
        number: how many times it has done that on this lane, from 1.
        how: what the meeting gives.
        place: the user's line that called, if it is known.
        data: what the rank brings, pickled, or empty for None; the coordinator passes it on unread.
        event: is taken as the ranks meet, if none of them brings anything.
    """

    tag: str
    number: int
    how: ExchangeKind
    place: str
    data: bytes
    event: tuple[Any, ...] | None = None

    def __str__(self) -> str:
        return f"{self.tag} #{self.number}" + (f" ({self.place})" if self.place else "")


class Break(NamedTuple):
    """The answer to a wait that cannot end well.

    Args:
        kind: ``"failed"``, ``"aborted"`` or ``"interrupted"``.
        reason: for people.
    """

    kind: str
    reason: str

    def error(self) -> BaseException:
        """What the rank raises."""
        if self.kind == "interrupted":
            return KeyboardInterrupt(self.reason)
        return (ControllerError if self.kind == "aborted" else WorkerGroupError)(self.reason)


class Noticed(NamedTuple):
    """What a meeting gives, where the ranks are also to know from it on that machines go.

    Args:
        message: what it gives.
        notice: the same for all who meet.
    """

    message: Any  # Any: as of every meeting
    notice: PreemptionInfo


class Lost(NamedTuple):
    """Stands for a return value that cannot travel.

    Args:
        why: to follow "its return value".
    """

    why: str


class WireChannel:
    """A rank's `Channel`: events and meetings over one connection.

    Args:
        address: of the coordinator.
        ranks: who this rank is.
        lane: which of the coordinator's lines of meetings this is.
    """

    def __init__(self, address: Address, ranks: RankInfo, lane: str = MAIN) -> None:
        self.ranks = ranks
        self.broken: Break | None = None
        """Why this rank can meet the others no more, if it cannot."""
        self.notice: PreemptionInfo | None = None
        self._address = address
        self._lane = lane
        self._counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._branching = threading.Lock()  # of its own: the line may be asked for while this one waits in a meeting
        self._branches: dict[str, WireChannel] = {}
        self._control: Line | None = None
        self._line = self._connected(lane)
        self._pid = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process is the rank, and no forked copy of it."""
        return os.getpid() == self._pid

    def publish(self, event: WorkerEvent) -> None:
        """Push an event to the coordinator.

        Raises:
            UsageError: this process is a forked copy of the rank.
        """
        if type(event) is Reported:  # by far the most, so as a plain tuple
            self._send(dumps((None, *event)))
            return
        if type(event) is Failed:
            event = event._replace(
                error=packed_error(event.error),  # type: ignore[arg-type]  # unpacked at the other end
                traceback=event.traceback or traceback_text(event.error),
            )
        elif type(event) is Finished:
            event = event._replace(value=self._packed_value(event))
        self._send(dumps(event))

    def exchange(
        self,
        tag: str,
        value: Any,  # Any: whatever the ranks pass each other
        how: ExchangeKind,
        event: Reported | None = None,
    ) -> Any:
        """Meet all ranks.

        Raises:
            WorkerGroupError: another rank has failed, died or ended, or does something else.
            ControllerError: the run was aborted.
            KeyboardInterrupt: the run was interrupted.
        """
        brings = how == "gather" or (how == "broadcast" and self.ranks.rank == 0)
        data = dumps(value) if brings and value is not None else b""
        with self._lock:
            if self.broken is not None:
                raise self.broken.error()
            self._counts[tag] += 1
            place = _users_place() if self._lane == MAIN else ""
            try:
                self._send(dumps((tag, self._counts[tag], how, place, data, event and tuple(event))))
                answer = loads(self._line.receive())
            except (EOFError, OSError) as error:
                self.broken = Break("failed", f"{tag} #{self._counts[tag]}: the connection to the coordinator is gone")
                raise self.broken.error() from error
            except BaseException:  # a signal handler has raised: an answer may come that nobody waits for
                self.broken = self.broken or Break("failed", f"an earlier wait in {tag} was interrupted")
                raise
            if type(answer) is Break:
                self.broken = answer
                raise answer.error()
            if type(answer) is Noticed:
                answer, self.notice = answer
        if how == "gather":
            return [loads(each) if each else None for each in answer]
        return loads(answer) if answer else None

    def branch(self, name: str) -> WireChannel:
        """A line of meetings beside this one; see `Channel.branch`."""
        with self._branching:
            if name not in self._branches:
                self._branches[name] = WireChannel(self._address, self.ranks, name)
            return self._branches[name]

    def answer_where(self) -> None:
        """From now on the coordinator can ask where this process is; `close` ends it.

        No thread and no lock are needed for it: the kernel signals that it is asked, and `faulthandler` writes the
        stacks straight to the connection, also while the process is stuck in an extension.
        """
        if not hasattr(fcntl, "F_SETSIG"):
            return
        self._control = self._connected(CONTROL)
        handle = self._control.fileno()
        if threading.current_thread() is threading.main_thread():
            # A library that puts back all handlers of this process, as Lightning does after each fit, puts back what
            # Python knows. Of a signal that is faulthandler's that would be its default, by which the next question
            # would kill the rank.
            signal.signal(_STACK_SIGNAL, self._answering())
        faulthandler.register(_STACK_SIGNAL, file=handle, all_threads=True, chain=False)
        fcntl.fcntl(handle, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(handle, fcntl.F_SETSIG, _STACK_SIGNAL)
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_ASYNC)

    def _answering(self) -> Callable[[int, FrameType | None], None]:
        def answer_in_place_of_faulthandler(number: int, frame: FrameType | None) -> None:
            if self._control is not None and self.is_own:
                handle = self._control.fileno()
                faulthandler.unregister(_STACK_SIGNAL)  # which it does not know has been taken from it
                faulthandler.register(_STACK_SIGNAL, file=handle, all_threads=True, chain=False)
                faulthandler.dump_traceback(file=handle, all_threads=True)

        assert answer_in_place_of_faulthandler.__name__ == ANSWERING
        return answer_in_place_of_faulthandler

    def tell_of_crashes(self) -> None:
        """Have a fatal signal told on the connection of `answer_where`, where nobody else could say which it was."""
        if self._control is not None:
            faulthandler.enable(file=self._control.fileno(), all_threads=False)

    def output_line(self) -> Line:
        """A connection that takes what this rank prints, as it is, and is the caller's to close."""
        return self._connected(OUTPUT)

    def close(self) -> None:
        """Hang up."""
        if self._control is not None:
            handle = self._control.fileno()
            fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_ASYNC)
            faulthandler.unregister(_STACK_SIGNAL)
            if threading.current_thread() is threading.main_thread():
                signal.signal(_STACK_SIGNAL, signal.SIG_DFL)
            self._control.close()
            self._control = None
        for branch in self._branches.values():
            branch.close()
        self._line.close()

    def _send(self, data: bytes) -> None:
        if not self.is_own:
            raise UsageError(
                f"this process (pid {os.getpid()}) was forked from rank {self.ranks.rank} and is no rank: it cannot "
                "report or return for it. End it with os._exit(), or use multiprocessing"
            )
        with self._sending:
            try:
                self._line.send(data)
            except OSError:
                raise
            except BaseException:  # a signal handler has raised, maybe within a message: what follows would be misread
                self._line.close()
                raise

    def _connected(self, lane: str) -> Line:
        return connected(self._address, dumps(tuple(Hello(self.ranks.rank, lane))))

    @staticmethod
    def _packed_value(event: Finished) -> bytes:
        try:
            return dumps(event.value)
        except Exception as error:  # whatever a class of the user's does when it is pickled
            kind = type(event.value).__qualname__
            return dumps(Lost(f"is a {kind} and does not pickle ({type(error).__name__}: {text_of(error)})"))


def understood(data: bytes) -> Meet | WorkerEvent:
    """A message of a rank's; an event's exception or value is still packed."""
    message = loads(data)
    if type(message) is not tuple:
        event: WorkerEvent = message
        return event
    return tuple.__new__(Reported, message[1:]) if message[0] is None else tuple.__new__(Meet, message)


def error_of(event: Failed) -> Exception:
    """The exception of an event that `WireChannel.publish` has packed."""
    try:
        return unpacked_error(event.error)  # type: ignore[arg-type, return-value]  # it travels as bytes
    except Exception:  # whatever a class of the user's does when it is built here
        last = event.traceback.rstrip().rpartition("\n")[2]
        return WorkerGroupError(last or "an exception that cannot be rebuilt here")


def value_of(event: Finished) -> Any:  # Any: the user's own
    """The return value of an event that `WireChannel.publish` has packed; one that is lost is None, and warned of."""
    try:
        value = loads(event.value)
    except Exception as error:  # whatever a class of the user's does when it is built
        value = Lost(f"cannot be read by the driver: {type(error).__name__}: {text_of(error)}")
    if type(value) is Lost:
        logger.warning("rank %d: its return value %s; it is None in the result", event.rank, value.why)
        return None
    return value


def _users_place() -> str:
    """The innermost line that is the user's own, else the innermost that is not Turnout's, as ``"file:line"``."""
    frame: FrameType | None = sys._getframe(1)
    place = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{file}:{frame.f_lineno}"
        if not place and frame.f_globals.get("__name__", "").partition(".")[0] != _PACKAGE:
            place = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return place
