"""What ranks print, cut into pieces of whole lines on its way to the driver; and the last lines, for errors."""

from __future__ import annotations

from collections import deque

from turnout.controllers.base import Sink
from turnout.session.events import Log

__all__ = ["PIECE", "LineCutter", "RankOutput"]

PIECE = 1 << 16
"""Bytes that are read, and passed on, at once."""

_LAST_LINES = 10
_LINE_SHOWN = 300


class LineCutter:
    """Cuts a stream into whole lines; one that does not end for long is passed on in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, data: bytes) -> bytes:
        """What can be passed on once ``data`` has come."""
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > PIECE:
            lines, newline, self._rest = lines + newline + self._rest, b"", b""
        return lines + newline

    def rest(self) -> bytes:
        """What is left at the end."""
        rest, self._rest = self._rest, b""
        return rest


class RankOutput:
    """What one rank prints: passed on in whole lines, the last of which are kept.

    Args:
        rank: the rank.
        sink: takes it.
    """

    def __init__(self, rank: int, sink: Sink) -> None:
        self._rank = rank
        self._sink = sink
        self._cutter = LineCutter()
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)

    def take(self, data: bytes) -> None:
        """It has printed ``data``."""
        self._pass_on(self._cutter.cut(data))

    def finish(self) -> None:
        """It prints no more: a line that has not ended has."""
        self._pass_on(self._cutter.rest())

    def shown(self) -> str:
        """The last lines, for an error."""
        lines = (line[-_LINE_SHOWN:].decode(errors="replace") for line in self._last)
        return "\n".join(f"  {line}" for line in lines)

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._last.extend(data.splitlines()[-_LAST_LINES:])
            self._sink(Log(self._rank, data))
