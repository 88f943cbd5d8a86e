"""`Output`: what a rank's process prints goes to the driver by a line of its own, so that no report waits for it."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable

from turnout.controllers.output import PIECE, LineCutter
from turnout.controllers.placed import take_streams
from turnout.controllers.wire import WireChannel
from turnout.session.events import Log

__all__ = ["Output"]

_LANE = "output"
_DRAIN_S = 5.0


class Output:
    """Takes the standard streams of this process, and carries them from a thread until the process ends.

    Ray's own way is left out: it follows a file, merges lines that differ in digits, and has no end.

    Args:
        channel: the rank's.
        on_lost: called on the thread, once, when the driver has hung up.
    """

    def __init__(self, channel: WireChannel, on_lost: Callable[[], None]) -> None:
        self._rank = channel.ranks.rank
        self._line = channel.branch(_LANE)
        self._on_lost = on_lost
        self._cutter = LineCutter()
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        self._asked, self._ask = os.pipe()
        self._is_drained = threading.Event()
        take_streams(theirs)
        threading.Thread(target=self._carry, name="turnout-output", daemon=True).start()

    def drain(self) -> None:
        """Return once what was printed so far is on its way, also a line that has not ended."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(self._ask, b"!")
        self._is_drained.wait(_DRAIN_S)

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
                    self._send(self._cutter.rest())
                    self._is_drained.set()
                elif not self._pass_on():
                    poll.unregister(self._pipe)  # all have closed it
        except OSError:  # the line, in the middle of a message
            pass
        self._is_drained.set()
        self._on_lost()

    def _pass_on(self) -> bool:
        """Pass on what is there; returns whether there may be more."""
        try:
            data = os.read(self._pipe, PIECE)
        except BlockingIOError:
            return False
        self._send(self._cutter.cut(data))
        return bool(data)

    def _send(self, data: bytes) -> None:
        if data:
            self._line.publish(Log(self._rank, data))
