"""From Arrow record batches as they are read to batches of the size and the format that a train function asks for."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

__all__ = ["FORMATS", "Arrays", "Batch", "array_of", "has_plain_numbers", "in_batches", "in_format", "shuffled"]


_LEAST_SHUFFLED = 1024  # rows that are shuffled at a time, where the buffer is smaller


class Batch(NamedTuple):
    """Rows of a table that are one batch.

    Args:
        table: it; most have many batches, which share what is made of its columns once.
        start: the first row.
        stop: the one after the last.
    """

    table: pa.Table
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """How many they are."""
        return self.stop - self.start

    @property
    def rows(self) -> pa.Table:
        """A table of them alone, which shares memory."""
        return self.table.slice(self.start, self.num_rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of them."""
        return self.table.column(name).slice(self.start, self.num_rows)


def in_batches(tables: Iterable[pa.Table], batch_size: int | None, *, drop_last: bool) -> Iterator[Batch]:
    """Cut a stream of tables into batches; most share its memory.

    Args:
        tables: of any sizes.
        batch_size: rows of a batch; None gives the tables as they come.
        drop_last: leave out the last batch if it is smaller.
    """
    if batch_size is None:
        yield from (Batch(table, 0, table.num_rows) for table in tables if table.num_rows)
        return
    waiting: list[pa.Table] = []  # less than a batch together
    count = 0
    for table in tables:
        start = 0
        if count:
            start = min(batch_size - count, table.num_rows)
            waiting.append(table.slice(0, start))
            count += start
            if count < batch_size:
                continue
            yield _joined(waiting)
            waiting, count = [], 0
        whole = start + (table.num_rows - start) // batch_size * batch_size
        for first in range(start, whole, batch_size):
            yield Batch(table, first, first + batch_size)
        if whole < table.num_rows:
            waiting, count = [table.slice(whole)], table.num_rows - whole
    if count and not drop_last:
        yield _joined(waiting)


def _joined(tables: list[pa.Table]) -> Batch:
    import pyarrow as pa

    table = pa.concat_tables(tables).combine_chunks()
    return Batch(table, 0, table.num_rows)


def shuffled(tables: Iterable[pa.Table], buffer_size: int, seed: str) -> Iterator[pa.Table]:
    """Shuffle a stream of rows within a buffer: every row is drawn from at least ``buffer_size`` others.

    The order comes of the rows and the seed alone, not of how the rows came.

    Args:
        tables: of any sizes.
        buffer_size: rows that are held back, but for the last of the stream; twice as many are held at times.
        seed: the same gives the same order.
    """
    import numpy as np
    import pyarrow as pa

    generator = np.random.default_rng(random.Random(seed).getrandbits(64))
    held: list[pa.Table] = []
    for batch in in_batches(tables, max(buffer_size, _LEAST_SHUFFLED), drop_last=False):
        held.append(batch.rows)
        count = sum(each.num_rows for each in held)
        mixed = pa.concat_tables(held).combine_chunks().take(pa.array(generator.permutation(count)))
        given = max(0, count - buffer_size)
        if given:
            yield mixed.slice(0, given)
        held = [mixed.slice(given)]
    if held:
        yield held[0]


class Arrays:
    """Makes batches dicts of arrays: numbers as they are stored, missing ones as NaN, lists of one length as rows.

    An array without missing values shares the table's memory, and cannot be written to.
    """

    def __init__(self) -> None:
        self._table: pa.Table | None = None
        self._whole: dict[str, np.ndarray | None] = {}

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        """The arrays of a batch, by column."""
        if batch.table is not self._table:
            self._whole = {name: self._shared(batch.table.column(name)) for name in batch.table.column_names}
            self._table = batch.table
        return {
            name: array_of(batch.column(name)) if whole is None else whole[batch.start : batch.stop]
            for name, whole in self._whole.items()
        }

    @staticmethod
    def _shared(column: pa.ChunkedArray) -> np.ndarray | None:
        return array_of(column) if has_plain_numbers(column) else None


def has_plain_numbers(column: pa.ChunkedArray) -> bool:
    """Whether it is one stretch of memory with whole numbers or floats, none of them missing."""
    import pyarrow as pa

    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(is_number and column.num_chunks == 1 and not column.null_count)


def array_of(column: pa.ChunkedArray) -> np.ndarray:
    """One column as `Arrays` gives it."""
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return array_of(column.cast(kind.value_type))
    if pa.types.is_fixed_size_list(kind) and column.null_count == 0:
        rows = array_of(pa.chunked_array([chunk.flatten() for chunk in column.chunks], kind.value_type))
        return rows.reshape(len(column), kind.list_size, *rows.shape[1:])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        rows = np.empty(len(column), dtype=object)
        rows[:] = [None if row is None else np.asarray(row) for row in column.to_pylist()]
        return rows
    if column.num_chunks == 1:
        return column.chunk(0).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]  # pyarrow has no types
    return column.to_numpy()  # type: ignore[no-any-return]  # as above


def _pandas_of(batch: Batch) -> pd.DataFrame:
    return batch.rows.to_pandas()


def _table_of(batch: Batch) -> pa.Table:
    return batch.rows


def in_format(batches: Iterator[Batch], batch_format: str) -> Iterator[Any]:  # Any: what the format makes
    """Make batches what one of `FORMATS` says."""
    if batch_format == "pandas":
        return map(_pandas_of, batches)
    return map(_table_of if batch_format == "pyarrow" else Arrays(), batches)


FORMATS = ("default", "numpy", "pandas", "pyarrow")
"""What ``batch_format`` can be, as in Ray Data."""
