"""`TaskQueue`: one background thread that does storage work in order, and hands back what went wrong.

Tasks are of kinds (uploads, retention), so that whoever waits for one kind does not wait for the other.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["TaskQueue"]

Task: TypeAlias = Callable[[], object]


class TaskQueue:
    """Runs tasks one after another on a thread, which starts with the first and ends with `close`.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: deque[tuple[str, Task, contextvars.Context]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pending: Counter[str] = Counter()
        self._is_closed = False
        self._failures: list[tuple[str, Exception]] = []

    def submit(self, kind: str, task: Task, *, max_pending: int | None = None) -> None:
        """Add a task.

        Args:
            kind: what `drain` and `take_failure` ask for.
            task: what it raises is kept for `take_failure`.
            max_pending: wait until fewer tasks of the kind than these are under way.
        """
        with self._changed:
            if max_pending is not None:
                self._changed.wait_for(lambda: self._pending[kind] < max_pending)
            self._tasks.append((kind, task, contextvars.copy_context()))
            self._pending[kind] += 1
            if self._thread is None:
                # A daemon: an upload that hangs for ever must not keep the interpreter from ending.
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self, kind: str | None = None, timeout_s: float | None = None) -> bool:
        """Wait until nothing is under way.

        Args:
            kind: only this kind; None waits for all.
            timeout_s: seconds to wait; None waits for as long as it takes.

        Returns:
            Whether nothing is.
        """
        if self.is_current_thread():
            return False  # the task that asks is under way itself
        with self._changed:
            return self._changed.wait_for(lambda: not self.num_pending(kind), timeout_s)

    def num_pending(self, kind: str | None = None) -> int:
        """How many tasks are under way, of one kind or of all."""
        return self._pending.total() if kind is None else self._pending[kind]

    def is_current_thread(self) -> bool:
        """Whether this code is one of the tasks."""
        return threading.current_thread() is self._thread

    def has_failed(self, kind: str) -> bool:
        """Whether there is a failure of the kind that has not been taken yet."""
        return any(each == kind for each, _ in self._failures)

    def take_failure(self, kind: str) -> Exception | None:
        """The oldest failure of the kind that has not been taken yet."""
        with self._changed:
            for index, (each, failure) in enumerate(self._failures):
                if each == kind:
                    del self._failures[index]
                    return failure
        return None

    def close(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is under way, and end the thread.

        Args:
            timeout_s: seconds to wait; tasks that have not begun by then are dropped, one that has is left behind.

        Returns:
            Whether all tasks were done.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        is_done = self.drain(timeout_s=timeout_s)
        with self._changed:
            self._is_closed = True
            for kind, _, _ in self._tasks:
                self._pending[kind] -= 1
            self._tasks.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(None if is_done or deadline is None else max(0.0, deadline - time.monotonic()))
        return is_done

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tasks or self._is_closed)
                if not self._tasks:
                    return
                kind, task, context = self._tasks.popleft()
            failure: Exception | None = None
            try:
                context.run(task)  # in the session of whoever submitted it
            except Exception as error:  # the edge of the thread
                failure = error
            except BaseException as error:  # an exit, say, of a user's function: it must not end this thread
                failure = RuntimeError(f"{type(error).__name__} was raised on the thread {self._name}: {error}")
            with self._changed:
                self._pending[kind] -= 1
                if failure is not None:
                    self._failures.append((kind, failure))
                self._changed.notify_all()
            del task, context, failure  # a waiting thread holds on to nothing
