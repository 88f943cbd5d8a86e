"""Reading ahead in the background: a bounded number of rows, on a thread that lives only while it has something to do.

A thread that is started when there is room, and ends when there is none, costs a tenth of a millisecond for each read
of many batches. It leaves nothing to stop: an iterator that is dropped waits for the read that is under way at most,
and one that is kept, in a traceback say, has no thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_ahead"]


def read_ahead(tables: Generator[pa.Table], *, num_rows: int | None = None, num_tables: int = 1) -> Iterator[pa.Table]:
    """Pass tables on in order, reading more of them in the background while too few wait.

    So one table more waits at most, beside the table that was passed on last.

    Args:
        tables: where they come from; only one thread at a time asks it, and what it raises is raised here, after all
            that it gave before.
        num_rows: how many rows wait; at least 1. None has ``num_tables`` decide.
        num_tables: how many tables wait; at least 1.
    """
    reader = _Reader(tables, num_rows, num_tables)
    try:
        while (table := reader.take()) is not None:
            yield table
    finally:
        reader.close()


class _Reader:
    """What the thread and the consumer share.

    Args:
        tables: where they come from.
        num_rows: how many rows wait at least, if there are as many; None has ``num_tables`` decide.
        num_tables: how many tables do.
    """

    def __init__(self, tables: Generator[pa.Table], num_rows: int | None, num_tables: int) -> None:
        self._tables = tables
        self._num_rows = num_rows
        self._num_tables = num_tables
        self._changed = threading.Condition()
        self._waiting: deque[pa.Table] = deque()
        self._num_waiting = 0
        self._thread: threading.Thread | None = None
        self._is_reading = False
        self._is_ended = False
        self._error: BaseException | None = None

    def take(self) -> pa.Table | None:
        """The next table, or None after the last."""
        with self._changed:
            self._read_if_there_is_room()
            while not self._waiting and not self._is_ended:
                self._changed.wait()
            if self._waiting:
                table = self._waiting.popleft()
                self._num_waiting -= table.num_rows
                self._read_if_there_is_room()
                return table
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """End the thread, and what it reads from."""
        with self._changed:
            self._is_ended = True
            thread = self._thread
        if thread is threading.current_thread():  # it collects the garbage that its own iterator has become
            return
        if thread is not None:
            thread.join()
        self._tables.close()

    def _read_if_there_is_room(self) -> None:
        """Start a thread if none reads; called under the lock."""
        if self._is_reading or self._is_ended or not self._has_room():
            return
        if self._thread is not None:
            self._thread.join()  # it reads no more, so that it asks for no lock either
        self._thread = threading.Thread(target=self._read, name="turnout-read-ahead")
        self._is_reading = True
        self._thread.start()

    def _has_room(self) -> bool:
        if self._num_rows is None:
            return len(self._waiting) < self._num_tables
        return self._num_waiting < self._num_rows

    def _read(self) -> None:
        """Read until there is no room, nothing left, or nobody to read for."""
        is_reading = True
        while is_reading:
            table, error = None, None
            try:
                table = next(self._tables, None)
            except BaseException as raised:
                error = raised  # it is raised where the consumer asks for more
            with self._changed:
                if table is None:
                    self._error, self._is_ended = error, True
                else:
                    self._waiting.append(table)
                    self._num_waiting += table.num_rows
                is_reading = self._is_reading = not self._is_ended and self._has_room()
                self._changed.notify()
