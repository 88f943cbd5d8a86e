"""How ranks are asked for their stacks, by a coordinator that goes on with everything else meanwhile."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping

from turnout.controllers.lines import ServedLine
from turnout.controllers.loop import Loop

__all__ = ["ask_for_stacks"]

_WAIT_S = 1.0  # for ranks that do not answer, since they are stopped for example
_QUIET_S = 0.05  # after the last piece of an answer, whose end nothing marks


def ask_for_stacks(loop: Loop, lines: Mapping[int, ServedLine], then: Callable[[dict[int, str]], None]) -> None:
    """Ask every rank for its stacks.

    Args:
        loop: where the answers are waited for.
        lines: of the ranks that are asked; each answers as `faulthandler` writes.
        then: is called in the loop with the answers, by rank; those that do not answer are not among them.
    """
    texts: dict[int, bytearray] = {}
    deadline = time.monotonic() + _WAIT_S
    heard = [time.monotonic()]

    def hear(rank: int, line: ServedLine) -> None:
        with contextlib.suppress(OSError):
            piece = os.read(line.fileno(), 1 << 16)
            if piece:
                texts.setdefault(rank, bytearray()).extend(piece)
                heard[0] = time.monotonic()
                return
        loop.unwatch(line)

    def look() -> None:
        now = time.monotonic()
        if now < deadline and (len(texts) < len(lines) or now < heard[0] + _QUIET_S):
            loop.call_in(_QUIET_S, look)
            return
        for line in lines.values():
            loop.unwatch(line)
        then({rank: text.decode(errors="replace") for rank, text in texts.items()})

    for rank, line in lines.items():
        with contextlib.suppress(OSError):
            loop.watch(line, functools.partial(hear, rank, line))
            os.write(line.fileno(), b"?")
    look()
