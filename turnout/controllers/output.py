"""What ranks print, cut into pieces of whole lines on its way to the driver; and the last lines, for errors."""

from __future__ import annotations

from collections import deque

__all__ = ["PIECE", "LastLines", "LineCutter"]

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


class LastLines:
    """The last lines that a rank has printed."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_LAST_LINES)

    def add(self, data: bytes) -> None:
        """It has printed ``data``."""
        self._lines.extend(data.splitlines()[-_LAST_LINES:])

    def shown(self) -> str:
        """For an error."""
        lines = (line[-_LINE_SHOWN:].decode(errors="replace") for line in self._lines)
        return "\n".join(f"  {line}" for line in lines)
