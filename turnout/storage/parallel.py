"""`in_threads`: one function on many items, by threads that keep neither Ctrl-C nor the interpreter's end waiting."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

__all__ = ["in_threads"]

T = TypeVar("T")
R = TypeVar("R")


def in_threads(function: Callable[[T], R], items: Sequence[T], *, num_threads: int, name: str) -> list[R]:
    """Call ``function`` with each item, several at a time.

    An executor's threads are waited for when the interpreter ends, so that storage that hangs would keep a process that
    has given up on it from ending. These are daemons: the caller waits for them, but whoever interrupts it does not.

    Args:
        function: what to call.
        items: are begun in their order.
        num_threads: at most.
        name: the threads'.

    Returns:
        What the calls returned, in the order of the items.

    Raises:
        BaseException: what the first of the items raised that failed. The items that were under way have ended by then,
            and the others are not begun. A KeyboardInterrupt of the caller's own leaves at once what is under way.
    """
    todo = collections.deque(range(len(items)))
    results: list[R | None] = [None] * len(items)
    failures: dict[int, BaseException] = {}

    def work() -> None:
        while True:
            try:
                index = todo.popleft()
            except IndexError:
                return
            try:
                results[index] = function(items[index])
            except BaseException as error:  # the edge of the thread: raised to the caller
                failures[index] = error
                todo.clear()

    threads = [
        threading.Thread(target=work, name=f"{name}_{number}", daemon=True)
        for number in range(min(num_threads, len(items)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        todo.clear()
        raise
    if failures:
        try:
            raise failures[min(failures)]
        finally:
            failures.clear()  # whose traceback holds this frame
    return cast("list[R]", results)
