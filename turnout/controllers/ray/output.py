"""`Output`: what a rank's process prints goes to the driver by a line of its own, so that no report waits for it."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Any

from turnout.controllers.output import PIECE
from turnout.controllers.placed import take_streams
from turnout.controllers.wire import WireChannel

__all__ = ["Output"]

_DRAIN_S = 5.0


class Output:
    """Takes the standard streams of this process until it ends.

    What Python prints is the kernel's to deliver once the call returns, so that the last words of a process that is
    killed arrive. What others write to the two descriptors, such as children, goes through a pipe and a thread: these
    stay what can be opened as ``/dev/stdout``. Ray's own way is left out: it follows a file, merges lines that differ
    in digits, and has no end.

    Args:
        channel: the rank's.
        on_lost: called on the thread, once, when the driver has hung up.
    """

    def __init__(self, channel: WireChannel, on_lost: Callable[[], None]) -> None:
        self._line = channel.output_line()
        self._on_lost = on_lost
        self._sending = threading.Lock()
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        self._asked, self._ask = os.pipe()
        self._is_drained = threading.Event()
        take_streams(theirs)
        for name, handle in (("stdout", 1), ("stderr", 2)):
            raw: Any = _Raw(handle, self._send)  # Any: typeshed's name for what a buffer takes is its own
            stream = io.TextIOWrapper(
                io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        os.register_at_fork(after_in_child=self._become_forked_child)
        threading.Thread(target=self._carry, name="turnout-output", daemon=True).start()

    def drain(self) -> None:
        """Return once what was printed so far is on its way."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(self._ask, b"!")
        self._is_drained.wait(_DRAIN_S)

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._line.send_raw(data)

    def _become_forked_child(self) -> None:
        self._sending = threading.Lock()  # another thread may have held it

    def _carry(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(self._asked, select.POLLIN)
        poll.register(self._line.fileno(), select.POLLIN)  # nothing comes on it but its end
        try:
            while True:
                ready = {handle for handle, _ in poll.poll()}
                if self._line.fileno() in ready:
                    break
                if self._asked in ready:
                    os.read(self._asked, 1)
                    while self._pass_on():
                        pass
                    self._is_drained.set()
                elif not self._pass_on():
                    poll.unregister(self._pipe)  # all have closed it
        except OSError:  # the line is gone
            pass
        self._is_drained.set()
        self._on_lost()

    def _pass_on(self) -> bool:
        """Pass on what is there; returns whether there may be more."""
        try:
            data = os.read(self._pipe, PIECE)
        except BlockingIOError:
            return False
        self._send(data)
        return bool(data)


class _Raw(io.RawIOBase):
    """A standard stream of Python's.

    Args:
        handle: the descriptor that stands for it, for those who ask.
        send: sends what is written.
    """

    def __init__(self, handle: int, send: Callable[[bytes], None]) -> None:
        self._handle = handle
        self._send = send

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._handle

    def write(self, data: Any) -> int:  # Any: whatever has a buffer
        self._send(bytes(data))
        return len(data)
