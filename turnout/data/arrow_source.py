"""`ArrowSource`: tables, Arrow data sets and Parquet paths as pieces that can be counted, and read in any order.

A piece is what is cheap to read by itself: a row group of a Parquet file, another format's file, or a stretch of a
table in memory.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from turnout.data.dealing import Stretch
from turnout.errors import DataError
from turnout.filesystem import redacted, resolve_uri

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset

__all__ = ["ArrowSource", "is_arrow", "opened"]

_TABLE_PIECE = 1024  # rows of a table that stay together when the order of the pieces is drawn
_READ_ROWS = 131_072  # rows that are read at a time, and cut into batches afterwards; fewer of wide ones
_READ_BYTES = 16 << 20
_FOOTER_THREADS = 16


def is_arrow(data: Any) -> bool:  # Any: data of the user's
    """Whether this is Arrow data: a table, a data set, or the path or URI of one in Parquet."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return any(
        base.__module__.partition(".")[0] == "pyarrow" and base.__name__ in ("Table", "RecordBatch", "Dataset")
        for base in type(data).__mro__
    )


def opened(name: str, data: Any) -> ArrowSource:  # Any: data of the user's
    """Open Arrow data; of files, no more than their names and one schema is read here.

    Args:
        name: of the data set, for errors.
        data: a `pyarrow.Table`, a `pyarrow.dataset.Dataset`, or a Parquet file's or folder's path or URI.

    Raises:
        DataError: there is nothing to read there.
    """
    import pyarrow as pa
    import pyarrow.dataset

    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return _TableSource(name, data)
    if isinstance(data, pyarrow.dataset.Dataset):
        return _DatasetSource(name, data, are_schemas_equal=False)
    text = os.fspath(data)
    try:
        filesystem, path = (None, os.path.expanduser(text)) if "://" not in text else resolve_uri(text)
        dataset = pyarrow.dataset.dataset(path, format="parquet", filesystem=filesystem)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"datasets[{name!r}]: {redacted(text)} is no Parquet file or folder: {error}") from error
    if not dataset.files:
        raise DataError(f"datasets[{name!r}]: there are no files in {redacted(text)}")
    return _DatasetSource(name, dataset, are_schemas_equal=True)


class ArrowSource(ABC):
    """What can be dealt to ranks and read.

    Args:
        name: of the data set, for errors.
    """

    is_shared = False
    """Whether batches may share memory with an object of the user's."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns."""

    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """The number of rows of each piece.

        Raises:
            DataError: a file cannot be read, or has another schema than the rest.
        """

    @abstractmethod
    def read(self, stretches: Sequence[Stretch], *, prefetch_rows: int) -> Iterator[pa.Table]:
        """Read stretches of pieces, in order, as tables of any sizes.

        Args:
            stretches: of pieces, by index.
            prefetch_rows: about how many rows are read ahead in the background; 0 for none.

        Raises:
            DataError: a file cannot be read.
        """


class _TableSource(ArrowSource):
    """A table in memory."""

    is_shared = True

    def __init__(self, name: str, table: pa.Table) -> None:
        super().__init__(name)
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def sizes(self) -> Sequence[int]:
        num_rows = self._table.num_rows
        return [min(_TABLE_PIECE, num_rows - first) for first in range(0, num_rows, _TABLE_PIECE)]

    def read(self, stretches: Sequence[Stretch], *, prefetch_rows: int) -> Iterator[pa.Table]:
        start = stop = 0
        for each in stretches:
            first = each.piece * _TABLE_PIECE
            if first + each.start != stop:  # stretches that follow each other are one slice
                yield from _slices(self._table, start, stop)
                start = first + each.start
            stop = first + each.stop
        yield from _slices(self._table, start, stop)


class _DatasetSource(ArrowSource):
    """Files, or whatever else Arrow calls a data set.

    Args:
        name: of the data set, for errors.
        dataset: it.
        are_schemas_equal: whether a file of another schema is an error; a data set of the user's own may mean it.
    """

    def __init__(self, name: str, dataset: pyarrow.dataset.Dataset, *, are_schemas_equal: bool) -> None:
        super().__init__(name)
        self._dataset = dataset
        self._are_schemas_equal = are_schemas_equal
        # Arrow gives no fragments of a filtered data set: it is one piece, of which each rank leaves out a part.
        self._is_filtered = bool(getattr(dataset, "_scan_options", None))
        self._pieces: list[tuple[pyarrow.dataset.Fragment, int | None]] | None = None
        self._sizes: list[int] = []
        self._row_bytes = 1

    @property
    def schema(self) -> pa.Schema:
        return self._dataset.schema

    def sizes(self) -> Sequence[int]:
        if self._pieces is None and self._is_filtered:
            self._pieces, self._sizes = [(self._dataset, None)], [self._dataset.count_rows()]
        elif self._pieces is None:
            fragments = list(self._dataset.get_fragments())
            with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
                counted = list(pool.map(self._counted, fragments))
            self._pieces = [
                (fragment, group) for fragment, each in zip(fragments, counted, strict=True) for group, _ in each
            ]
            self._sizes = [size for each in counted for _, size in each]
        return self._sizes

    def read(self, stretches: Sequence[Stretch], *, prefetch_rows: int) -> Iterator[pa.Table]:
        import pyarrow as pa
        import pyarrow.dataset

        assert self._pieces is not None, "sizes() comes first"
        if not stretches:
            return
        rows = max(1, min(_READ_ROWS, _READ_BYTES // self._row_bytes))
        scanner = self._part(stretches).scanner(
            batch_size=rows,
            batch_readahead=-(-prefetch_rows // rows),
            fragment_readahead=1 + bool(prefetch_rows),
            use_threads=True,
        )
        wanted = _wanted(stretches, self._sizes)
        position = 0
        try:
            for batch in scanner.to_batches():
                end = position + batch.num_rows
                while wanted and wanted[0][0] < end:
                    start, stop = wanted[0]
                    first, last = max(start, position), min(stop, end)
                    yield pa.Table.from_batches([batch.slice(first - position, last - first)])
                    if stop > end:
                        break
                    del wanted[0]
                position = end
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"datasets[{self.name!r}]: {redacted(error)}") from error

    def _part(self, stretches: Sequence[Stretch]) -> pyarrow.dataset.Dataset:
        """The pieces that are read, as a data set, so that Arrow reads ahead over the ends of files."""
        import pyarrow.dataset

        assert self._pieces is not None, "read() has looked"
        if self._is_filtered:
            return self._dataset
        fragments: list[tuple[pyarrow.dataset.Fragment, list[int]]] = []
        for each in stretches:
            fragment, group = self._pieces[each.piece]
            if group is not None and fragments and fragments[-1][0] is fragment and group > fragments[-1][1][-1]:
                fragments[-1][1].append(group)
            else:
                fragments.append((fragment, [] if group is None else [group]))
        chosen = [fragment.subset(row_group_ids=groups) if groups else fragment for fragment, groups in fragments]
        if isinstance(self._dataset, pyarrow.dataset.FileSystemDataset):
            return pyarrow.dataset.FileSystemDataset(
                chosen, self._dataset.schema, self._dataset.format, filesystem=self._dataset.filesystem
            )
        return _FragmentsInTurn(chosen, self._dataset.schema)

    def _counted(self, fragment: pyarrow.dataset.Fragment) -> list[tuple[int | None, int]]:
        """The pieces of a fragment: row group, if it has such, and number of rows."""
        import pyarrow as pa
        import pyarrow.dataset

        path = getattr(fragment, "path", "")
        try:
            if self._are_schemas_equal:
                self._refuse_other_schema(fragment, path)
            if not isinstance(fragment, pyarrow.dataset.ParquetFileFragment):
                return [(None, fragment.count_rows())]
            groups = fragment.row_groups
        except (OSError, pa.ArrowException) as error:
            text = f"datasets[{self.name!r}]: {redacted(path)} cannot be read: {redacted(error)}"
            raise DataError(text) from error
        for each in groups:
            if each.num_rows:
                self._row_bytes = max(self._row_bytes, each.total_byte_size // each.num_rows)
        return [(each.id, each.num_rows) for each in groups]

    def _refuse_other_schema(self, fragment: pyarrow.dataset.Fragment, path: str) -> None:
        import pyarrow as pa

        own = fragment.physical_schema
        names = set(own.names)
        expected = pa.schema([each for each in self.schema if each.name in names or not self._is_partition(each.name)])
        if not own.equals(expected, check_metadata=False):
            first = self._dataset.files[0]
            raise DataError(
                f"datasets[{self.name!r}]: {redacted(path)} has another schema than {redacted(first)}:\n"
                f"{_shown(own)}\nand not\n{_shown(expected)}"
            )

    def _is_partition(self, name: str) -> bool:
        partitioning = getattr(self._dataset, "partitioning", None)
        return partitioning is not None and name in partitioning.schema.names


class _FragmentsInTurn:
    """Fragments of any kind, read one after another."""

    def __init__(self, fragments: Sequence[Any], schema: pa.Schema) -> None:
        self._fragments = fragments
        self._schema = schema
        self._options: dict[str, Any] = {}

    def scanner(self, **options: Any) -> _FragmentsInTurn:
        self._options = options
        return self

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        for fragment in self._fragments:
            yield from fragment.scanner(schema=self._schema, **self._options).to_batches()


def _wanted(stretches: Sequence[Stretch], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The rows that are kept of pieces read one after another."""
    offset, wanted = 0, []
    for each in stretches:
        wanted.append((offset + each.start, offset + each.stop))
        offset += sizes[each.piece]
    return wanted


def _slices(table: pa.Table, start: int, stop: int) -> Iterator[pa.Table]:
    """A part of a table; its rows lie in one piece each, so that columns need not be copied together later."""
    import pyarrow as pa

    for batch in table.slice(start, stop - start).to_batches():
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name}: {each.type}" for each in schema)
