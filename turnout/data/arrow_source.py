"""`ArrowSource`: tables, Arrow data sets and Parquet paths as pieces that can be counted, and read in any order.

A piece is what is cheap to read by itself: a row group of a Parquet file, another format's file, or a stretch of a
table in memory.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from turnout.data.dealing import Stretch
from turnout.data.fragments import FragmentReader, path_of, shown_schema
from turnout.errors import DataError, StorageError
from turnout.filesystem import redacted, resolve_uri

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset

__all__ = ["ArrowSource", "is_arrow", "opened"]

_TABLE_PIECE = 1024  # rows of a table that stay together when the order of the pieces is drawn
_READ_ROWS = 131_072  # rows that are read at a time, and cut into batches afterwards; fewer of wide ones
_READ_BYTES = 16 << 20
_FOOTER_THREADS = 16
_OF_A_FOLDER = (
    ". Of a folder every file is read whose name begins with neither '.' nor '_'; give a pyarrow.dataset.Dataset to "
    "choose some"
)


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
    if isinstance(data, (pa.Table, pyarrow.dataset.Dataset)):
        if twice := [column for column, count in Counter(data.schema.names).items() if count > 1]:
            raise DataError(f"datasets[{name!r}]: it has several columns of the name {twice[0]!r}")
        if isinstance(data, pa.Table):
            return _TableSource(name, data)
        return _DatasetSource(name, data, are_schemas_equal=False)
    dataset = _found(name, os.fspath(data))
    return _DatasetSource(name, dataset, are_schemas_equal=True)


def _found(name: str, text: str) -> pyarrow.dataset.FileSystemDataset:
    """The Parquet at a path or URI."""
    import pyarrow as pa
    import pyarrow.dataset

    shown = redacted(text) or "a blank path"
    try:
        filesystem, path = (None, os.path.expanduser(text)) if "://" not in text else resolve_uri(text)
        dataset = pyarrow.dataset.dataset(path, format="parquet", filesystem=filesystem, partitioning="hive")
    except StorageError as error:
        raise DataError(f"datasets[{name!r}]: {error}") from error
    except FileNotFoundError as error:
        hint = "; name a folder, as wildcards are not understood" if "*" in text else ""
        raise DataError(f"datasets[{name!r}]: there is nothing at {shown}{hint}") from error
    except (OSError, pa.ArrowException) as error:
        text = f"datasets[{name!r}]: {shown} is no Parquet file or folder of such: {redacted(error)}{_OF_A_FOLDER}"
        raise DataError(text) from error
    if not dataset.files:
        raise DataError(f"datasets[{name!r}]: there are no files in {shown}")
    return dataset


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
    def read(self, stretches: Sequence[Stretch]) -> Generator[pa.Table]:
        """Read stretches of pieces, in order, as tables of any sizes, each when it is asked for.

        Args:
            stretches: of pieces, by index.

        Raises:
            DataError: a file cannot be read, or has changed since its rows were counted.
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

    def read(self, stretches: Sequence[Stretch]) -> Generator[pa.Table]:
        start = stop = 0
        for each in stretches:
            first = each.piece * _TABLE_PIECE
            if first + each.start != stop:  # stretches that follow each other are one slice
                yield from _slices(self._table, start, stop)
                start = first + each.start
            stop = first + each.stop
        yield from _slices(self._table, start, stop)


class _Piece(NamedTuple):
    """A fragment's row group, or a fragment that has none."""

    fragment: pyarrow.dataset.Fragment
    group: int | None


class _Run(NamedTuple):
    """Pieces of a fragment that are read at once.

    Args:
        fragment: it.
        groups: its row groups, which follow each other; None is all of a fragment that has none.
        size: how many rows they have.
        start: the first row that is wanted.
        stop: the one after the last.
    """

    fragment: pyarrow.dataset.Fragment
    groups: list[int] | None
    size: int
    start: int
    stop: int

    def joined(self, other: _Run, limit: int) -> _Run | None:
        """Both as one, if no row is left out between them and it has no more than ``limit``."""
        if (
            self.groups is None
            or other.groups is None
            or other.fragment is not self.fragment
            or other.groups[0] != self.groups[-1] + 1
            or self.stop < self.size
            or other.start
            or self.size + other.size > limit
        ):
            return None
        self.groups.extend(other.groups)
        return self._replace(size=self.size + other.size, stop=self.size + other.stop)


class _DatasetSource(ArrowSource):
    """Files, or whatever else Arrow calls a data set.

    Args:
        name: of the data set, for errors.
        dataset: it.
        are_schemas_equal: whether a file of another schema is an error; a data set of the user's own may mean it.
    """

    def __init__(self, name: str, dataset: pyarrow.dataset.Dataset, *, are_schemas_equal: bool) -> None:
        import pyarrow.dataset

        super().__init__(name)
        self._are_schemas_equal = are_schemas_equal
        # Arrow gives no fragments of a filtered data set, but those of one that has forgotten its filter.
        self._filter = (getattr(dataset, "_scan_options", None) or {}).get("filter")
        if self._filter is not None:
            dataset = dataset.replace_schema(dataset.schema)
            dataset._scan_options = {}
        self._dataset = dataset
        self._pieces: list[_Piece] | None = None
        self._sizes: list[int] = []
        self._row_bytes = 1
        is_decoded = isinstance(dataset, pyarrow.dataset.FileSystemDataset) and isinstance(
            dataset.format, pyarrow.dataset.ParquetFileFormat
        )
        self.is_shared = not is_decoded

    @property
    def schema(self) -> pa.Schema:
        return self._dataset.schema

    def sizes(self) -> Sequence[int]:
        if self._pieces is None:
            fragments = list(self._dataset.get_fragments())
            with ThreadPoolExecutor(_FOOTER_THREADS, thread_name_prefix="turnout-footers") as pool:
                counted = list(pool.map(self._counted, fragments))
            self._sizes = [size for each in counted for _, size in each]
            self._pieces = [piece for each in counted for piece, _ in each]
        return self._sizes

    def read(self, stretches: Sequence[Stretch]) -> Generator[pa.Table]:
        import pyarrow as pa

        num_rows = max(1, min(_READ_ROWS, _READ_BYTES // self._row_bytes))
        with FragmentReader(self.name, self.schema, self._filter) as reader:
            for run in self._runs(stretches, num_rows):
                position = 0
                for batch in reader.batches(run.fragment, run.groups, num_rows):
                    first = max(run.start - position, 0)
                    last = min(run.stop - position, batch.num_rows)
                    if first < last:
                        yield pa.Table.from_batches([batch.slice(first, last - first)])
                    position += batch.num_rows
                    if position >= run.stop:
                        break
                if position < run.stop:
                    raise DataError(
                        f"datasets[{self.name!r}]: {path_of(run.fragment)} has fewer rows than when they were counted"
                    )

    def _runs(self, stretches: Sequence[Stretch], num_rows: int) -> list[_Run]:
        """Stretches as they are read: small row groups that follow each other at once, ``num_rows`` at most."""
        self.sizes()
        assert self._pieces is not None, "sizes() has seen to it"
        runs: list[_Run] = []
        for each in stretches:
            piece = self._pieces[each.piece]
            groups = None if piece.group is None else [piece.group]
            run = _Run(piece.fragment, groups, self._sizes[each.piece], each.start, each.stop)
            joined = runs[-1].joined(run, num_rows) if runs else None
            if joined is None:
                runs.append(run)
            else:
                runs[-1] = joined
        return runs

    def _counted(self, fragment: pyarrow.dataset.Fragment) -> list[tuple[_Piece, int]]:
        """The pieces of a fragment, and the number of rows of each."""
        import pyarrow as pa
        import pyarrow.dataset

        try:
            if self._are_schemas_equal:
                self._refuse_other_schema(fragment)
            if not isinstance(fragment, pyarrow.dataset.ParquetFileFragment):
                return [(_Piece(fragment, None), fragment.count_rows(filter=self._filter))]
            groups = fragment.row_groups
            for each in groups:
                if each.num_rows:
                    self._row_bytes = max(self._row_bytes, each.total_byte_size // each.num_rows)
            if self._filter is None:
                return [(_Piece(fragment, each.id), each.num_rows) for each in groups]
            return [
                (
                    _Piece(fragment, each.id),
                    fragment.subset(row_group_ids=[each.id]).count_rows(filter=self._filter),
                )
                for each in groups
            ]
        except (OSError, pa.ArrowException) as error:
            text = f"datasets[{self.name!r}]: {path_of(fragment)} cannot be read: {redacted(error)}"
            raise DataError(text + ("" if path_of(fragment).endswith(".parquet") else _OF_A_FOLDER)) from error

    def _refuse_other_schema(self, fragment: pyarrow.dataset.Fragment) -> None:
        import pyarrow as pa
        import pyarrow.dataset

        own = fragment.physical_schema
        of_folders = pyarrow.dataset.get_partition_keys(fragment.partition_expression).keys() - set(own.names)
        expected = pa.schema([each for each in self.schema if each.name not in of_folders])
        if not own.equals(expected, check_metadata=False):
            first = self._dataset.files[0]
            raise DataError(
                f"datasets[{self.name!r}]: {path_of(fragment)} has another schema than {redacted(first)}:\n"
                f"{shown_schema(own)}\nand not\n{shown_schema(expected)}"
            )


def _slices(table: pa.Table, start: int, stop: int) -> Iterator[pa.Table]:
    """A part of a table; its rows lie in one piece each, so that columns need not be copied together later."""
    import pyarrow as pa

    for batch in table.slice(start, stop - start).to_batches():
        if batch.num_rows:
            yield pa.Table.from_batches([batch])
