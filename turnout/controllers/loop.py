"""`Loop`: waits for many descriptors and moments at once, for a controller that sleeps until something happens."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["Action", "Loop"]

Action: TypeAlias = Callable[[], object]


class Loop:
    """Calls actions on the thread that serves; everything but `call_soon` and `wake` is for that thread.

    Args:
        linger_s: how long to go on looking, after something has happened, before the thread sleeps. Ranks that meet
            again and again are then answered without the tens of microseconds that a thread takes to wake up. Not for
            a thread that others of its process would have to wait for.
    """

    def __init__(self, linger_s: float = 0.0) -> None:
        self._linger_s = linger_s
        self._soon: deque[Action] = deque()
        self._timers: list[tuple[float, int, Action]] = []
        self._timer_numbers = itertools.count()
        self._actions: dict[int, Action] = {}
        self._cleanup = contextlib.ExitStack()
        self._selector = self._cleanup.enter_context(selectors.DefaultSelector())
        woken, self._waker = socket.socketpair()
        for each in (woken, self._waker):
            self._cleanup.callback(each.close)
            each.setblocking(False)
        self.watch(woken, lambda: _drain(woken))

    def serve(self, is_done: Callable[[], bool]) -> None:
        """Call what is due until ``is_done``, which is asked after each round."""
        timers = self._timers
        while not is_done():
            for key, _ in self._next_events():
                action: Action = key.data
                if self._actions.get(key.fd) is action:  # else an action before has changed it
                    action()
            while timers and timers[0][0] <= time.monotonic():
                heapq.heappop(timers)[2]()
            while self._soon:
                self._soon.popleft()()

    def _next_events(self) -> list[tuple[selectors.SelectorKey, int]]:
        select = self._selector.select
        until = time.monotonic() + self._linger_s
        while self._linger_s:
            if events := select(0):
                return events
            if time.monotonic() >= until:
                break
        return select(max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None)

    def watch(self, file: Any, action: Action, *, writes: bool = False) -> None:  # Any: whatever has a fileno
        """Call ``action`` whenever ``file`` can be read, or written to if it ``writes``."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)
        is_known = file.fileno() in self._actions if hasattr(file, "fileno") else file in self._actions
        key = (self._selector.modify if is_known else self._selector.register)(file, events, action)
        self._actions[key.fd] = action

    def unwatch(self, file: Any) -> None:  # Any: whatever has a fileno
        """Watch it no longer."""
        with contextlib.suppress(KeyError, ValueError, OSError):
            del self._actions[self._selector.unregister(file).fd]

    def call_in(self, delay_s: float, action: Action) -> None:
        """Call ``action`` in the loop, once."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._timer_numbers), action))

    def call_soon(self, action: Action) -> None:
        """Call ``action`` in the loop, now; from any thread, or a signal handler."""
        self._soon.append(action)
        self.wake()

    def wake(self) -> None:
        """Have the loop ask ``is_done`` now; from any thread, or a signal handler."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"!")

    @property
    def wake_fd(self) -> int:
        """For `signal.set_wakeup_fd`: a signal then wakes the loop, whatever the main thread is at."""
        return self._waker.fileno()


def _drain(woken: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while woken.recv(4096):
            pass
