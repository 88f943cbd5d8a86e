"""From Arrow record batches as they are read to batches of the size and the format that a train function asks for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa

__all__ = ["FORMATS", "array_of", "in_batches", "numpy_of", "shuffled"]


_LEAST_SHUFFLED = 1024  # rows that are shuffled at a time, where the buffer is smaller


def in_batches(tables: Iterable[pa.Table], batch_size: int | None, *, drop_last: bool) -> Iterator[pa.Table]:
    """Cut a stream of tables into batches; most are slices that share its memory.

    Args:
        tables: of any sizes.
        batch_size: rows of a batch; None gives the tables as they come.
        drop_last: leave out the last batch if it is smaller.
    """
    import pyarrow as pa

    if batch_size is None:
        yield from (table for table in tables if table.num_rows)
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
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, count = [], 0
        whole = start + (table.num_rows - start) // batch_size * batch_size
        for first in range(start, whole, batch_size):
            yield table.slice(first, batch_size)
        if whole < table.num_rows:
            waiting, count = [table.slice(whole)], table.num_rows - whole
    if count and not drop_last:
        yield pa.concat_tables(waiting).combine_chunks()


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
    for table in in_batches(tables, max(buffer_size, _LEAST_SHUFFLED), drop_last=False):
        held.append(table)
        count = sum(each.num_rows for each in held)
        mixed = pa.concat_tables(held).combine_chunks().take(pa.array(generator.permutation(count)))
        given = max(0, count - buffer_size)
        if given:
            yield mixed.slice(0, given)
        held = [mixed.slice(given)]
    if held:
        yield held[0]


def numpy_of(table: pa.Table) -> dict[str, np.ndarray]:
    """A batch as arrays by column: numbers as they are stored, missing ones as NaN, lists of one length as rows.

    An array without missing values shares the table's memory, and cannot be written to.
    """
    return {name: array_of(table.column(name)) for name in table.column_names}


def array_of(column: pa.ChunkedArray) -> np.ndarray:
    """One column as `numpy_of` gives it."""
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return array_of(column.cast(kind.value_type))
    if pa.types.is_fixed_size_list(kind) and column.null_count == 0:
        return _stacked(column, kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        rows = np.empty(len(column), dtype=object)
        rows[:] = [None if row is None else np.asarray(row) for row in column.to_pylist()]
        return rows
    if column.num_chunks == 1 and column.null_count == 0 and pa.types.is_primitive(kind) and not _is_bit(kind):
        return column.chunk(0).to_numpy()  # type: ignore[no-any-return]  # pyarrow has no types
    return column.to_numpy()  # type: ignore[no-any-return]  # as above


def _stacked(column: pa.ChunkedArray, size: int) -> np.ndarray:
    combined = column.combine_chunks()
    chunk = combined.chunk(0) if hasattr(combined, "num_chunks") and combined.num_chunks else combined
    return chunk.flatten().to_numpy(zero_copy_only=False).reshape(len(column), size)  # type: ignore[no-any-return]


def _is_bit(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_boolean(kind))


def _pandas_of(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas()


def _same(table: pa.Table) -> pa.Table:
    return table


FORMATS: dict[str, Callable[[pa.Table], Any]] = {
    "default": numpy_of,
    "numpy": numpy_of,
    "pandas": _pandas_of,
    "pyarrow": _same,
}
"""What ``batch_format`` can be, as in Ray Data."""
