"""A rank's end of the line to the coordinator, and the messages that pass on it.

Connections are those of `multiprocessing.connection`: framed, and authenticated with a key that is random for every
attempt. A rank has one for its train function, one on which it can be asked where it is (`CONTROL`), and one for each
`branch`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
from collections import Counter
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, NamedTuple

from turnout.controllers.travel import dumps, loads, packed_error, traceback_text
from turnout.errors import ControllerError, WorkerGroupError
from turnout.session.channel import ExchangeKind
from turnout.session.events import Failed, Finished, RankInfo, WorkerEvent

__all__ = ["CONTROL", "DRIVERS", "MAIN", "Address", "Break", "Hello", "Meet", "WireChannel"]

logger = logging.getLogger(__name__)

MAIN = "main"
CONTROL = "control"
DRIVERS = "drivers"
"""Where every rank runs the driver program, these meet on a lane of their own, also after an attempt has failed."""
_PACKAGE = __name__.partition(".")[0]
# The signal by which a rank's kernel tells it that it is asked for its stacks. A real-time one, since the user's
# program and its libraries have meanings of their own for the classic ones.
_STACK_SIGNAL = signal.SIGRTMIN + 11 if sys.platform == "linux" else signal.SIGIO


class Address(NamedTuple):
    """Where a coordinator listens, and the key that opens it."""

    place: str | tuple[str, int]
    key: bytes


class Hello(NamedTuple):
    """A rank's first message on each connection."""

    rank: int
    lane: str


class Meet(NamedTuple):
    """A rank has come to a meeting.

    Args:
        tag: what it is doing.
        number: how many times it has done that on this lane, from 1.
        how: what the meeting gives.
        place: the user's line that called, if it is known.
        data: what the rank brings, pickled; the coordinator passes it on unread.
    """

    tag: str
    number: int
    how: ExchangeKind
    place: str
    data: bytes

    @property
    def what(self) -> tuple[str, int, ExchangeKind]:
        """What must be the same on every rank."""
        return self[:3]

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
        self._address = address
        self._lane = lane
        self._counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._branches: dict[str, WireChannel] = {}
        self._control: Connection | None = None
        self._line = _connected(address, Hello(ranks.rank, lane))

    def publish(self, event: WorkerEvent) -> None:
        """Push an event to the coordinator."""
        if type(event) is Failed:
            event = event._replace(
                error=packed_error(event.error),  # type: ignore[arg-type]  # unpacked at the other end
                traceback=event.traceback or traceback_text(event.error),
            )
        elif type(event) is Finished:
            event = event._replace(value=self._packed_value(event))
        self._send(dumps(event))

    def exchange(self, tag: str, value: Any, how: ExchangeKind) -> Any:  # Any: whatever the ranks pass each other
        """Meet all ranks.

        Raises:
            WorkerGroupError: another rank has failed, died or ended, or does something else.
            ControllerError: the run was aborted.
            KeyboardInterrupt: the run was interrupted.
        """
        brings = how == "gather" or (how == "broadcast" and self.ranks.rank == 0)
        data = dumps(value) if brings else b""
        with self._lock:
            if self.broken is not None:
                raise self.broken.error()
            self._counts[tag] += 1
            place = _users_place() if self._lane == MAIN else ""
            try:
                self._send(dumps(Meet(tag, self._counts[tag], how, place, data)))
                answer = loads(self._line.recv_bytes())
            except (EOFError, OSError) as error:
                self.broken = Break("failed", f"{tag} #{self._counts[tag]}: the connection to the coordinator is gone")
                raise self.broken.error() from error
            except BaseException:  # a signal handler has raised: an answer may come that nobody waits for
                self.broken = self.broken or Break("failed", f"an earlier wait in {tag} was interrupted")
                raise
            if type(answer) is Break:
                self.broken = answer
                raise answer.error()
        if how == "gather":
            return [loads(each) for each in answer]
        return None if how == "barrier" else loads(answer)

    def branch(self, name: str) -> WireChannel:
        """A line of meetings beside this one; see `Channel.branch`."""
        with self._lock:
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
        self._control = _connected(self._address, Hello(self.ranks.rank, CONTROL))
        handle = self._control.fileno()
        faulthandler.register(_STACK_SIGNAL, file=handle, all_threads=True, chain=False)
        fcntl.fcntl(handle, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(handle, fcntl.F_SETSIG, _STACK_SIGNAL)
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_ASYNC)

    def close(self) -> None:
        """Hang up."""
        if self._control is not None:
            handle = self._control.fileno()
            fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_ASYNC)
            faulthandler.unregister(_STACK_SIGNAL)
            self._control.close()
            self._control = None
        for branch in self._branches.values():
            branch.close()
        self._line.close()

    def _send(self, data: bytes) -> None:
        with self._sending:
            try:
                self._line.send_bytes(data)
            except OSError:
                raise
            except BaseException:  # a signal handler has raised, maybe within a message: what follows would be misread
                self._line.close()
                raise

    def _packed_value(self, event: Finished) -> bytes:
        try:
            return dumps(event.value)
        except Exception as error:  # whatever a class of the user's does when it is pickled
            logger.warning(
                "rank %d: the return value, a %s, does not pickle, and is None in the result: %s",
                event.rank,
                type(event.value).__qualname__,
                error,
            )
            return dumps(None)


def _connected(address: Address, hello: Hello) -> Connection:
    plain = socket.socket(socket.AF_UNIX if isinstance(address.place, str) else socket.AF_INET)
    with contextlib.closing(plain):
        plain.connect(address.place)
        if plain.family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line = Connection(plain.detach())
    try:
        answer_challenge(line, address.key)
        deliver_challenge(line, address.key)
        line.send_bytes(dumps(hello))
    except BaseException:
        line.close()
        raise
    return line


def _users_place() -> str:
    """The innermost line that is not Turnout's own, as ``"file:line"``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
