"""How a fragment of an Arrow data set, mostly a Parquet file, is read: a few row groups at a time, and only when asked.

Arrow's own scanner reads on while the consumer is busy, up to the whole of the data, whatever it is told about reading
ahead. A Parquet file's own reader gives the next rows when it is asked for them, holds some buffers of compressed data
beside them, and is faster. It cannot bring a file's columns into the shape that a data set says, so that the scanner
reads those that need it, one piece at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from turnout.errors import DataError
from turnout.filesystem import redacted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.parquet

__all__ = ["FragmentReader", "path_of", "shown_schema"]

# Compressed data that is held of the row group being read: from a disk, a window of each column; from elsewhere, where
# every request takes long, all of it if it is no more than this.
_WINDOW_BYTES, _LEAST_WINDOW_BYTES = 1 << 20, 1 << 16
_REMOTE_GROUP_BYTES = 64 << 20
_REMOTE_WINDOW_BYTES = 8 << 20
_ALL_WINDOWS_BYTES = 32 << 20


class FragmentReader:
    """Reads fragments of one data set, and keeps the file open that it read last.

    Args:
        name: of the data set, for errors.
        schema: that is wanted.
        row_filter: an expression of Arrow's that rows must meet, or None.
    """

    def __init__(self, name: str, schema: pa.Schema, row_filter: Any = None) -> None:  # Any: pyarrow has no types
        self._name = name
        self._schema = schema
        self._filter = row_filter
        self._fragment: pyarrow.dataset.Fragment | None = None
        self._file: pyarrow.parquet.ParquetFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def batches(
        self, fragment: pyarrow.dataset.Fragment, groups: Sequence[int] | None, num_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read row groups of a fragment, in their order.

        Args:
            fragment: the file.
            groups: by index; None is all of a fragment that has no row groups.
            num_rows: of a batch, at most.

        Raises:
            DataError: it cannot be read, or is another file than when its rows were counted.
        """
        import pyarrow as pa

        try:
            if groups is None:
                yield from self._scanned(fragment, num_rows)
            elif self._is_as_wanted(fragment):
                yield from self._opened(fragment).iter_batches(num_rows, row_groups=list(groups))
            else:
                yield from self._scanned(fragment.subset(row_group_ids=list(groups)), num_rows)
        except FileNotFoundError as error:
            raise self._refused(fragment, f"is no longer there: {redacted(error)}") from error
        except (OSError, pa.ArrowException) as error:
            raise self._refused(fragment, f"cannot be read: {redacted(error)}{self._difference(fragment)}") from error

    def _scanned(self, fragment: pyarrow.dataset.Fragment, num_rows: int) -> Iterator[pa.RecordBatch]:
        scanner = fragment.scanner(
            schema=self._schema, filter=self._filter, batch_size=num_rows, batch_readahead=0, fragment_readahead=1
        )
        yield from scanner.to_batches()

    def _is_as_wanted(self, fragment: pyarrow.dataset.Fragment) -> bool:
        """Whether a Parquet file needs neither a filter nor conversions, and is read with no options of the user's."""
        import pyarrow.dataset

        return (
            self._filter is None
            and fragment.format == pyarrow.dataset.ParquetFileFormat()
            and fragment.physical_schema.equals(self._schema, check_metadata=False)
        )

    def _opened(self, fragment: pyarrow.dataset.Fragment) -> pyarrow.parquet.ParquetFile:
        import pyarrow.fs
        import pyarrow.parquet

        if self._file is not None and self._fragment is fragment:
            return self._file
        self._close()
        known = fragment.metadata
        columns = max(1, known.num_columns)
        is_local = isinstance(fragment.filesystem, pyarrow.fs.LocalFileSystem)
        largest = max(each.total_byte_size for each in fragment.row_groups)
        is_whole = not is_local and largest <= _REMOTE_GROUP_BYTES
        window = min(_WINDOW_BYTES if is_local else _REMOTE_WINDOW_BYTES, _ALL_WINDOWS_BYTES // columns)
        file = pyarrow.parquet.ParquetFile(
            fragment.path,
            filesystem=fragment.filesystem,
            pre_buffer=is_whole,
            buffer_size=0 if is_whole else max(_LEAST_WINDOW_BYTES, window),
        )
        if not file.metadata.equals(known):
            file.close()
            raise self._refused(fragment, "is another file than it was when its rows were counted")
        self._fragment, self._file = fragment, file
        return file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._fragment = self._file = None

    def _refused(self, fragment: pyarrow.dataset.Fragment, what: str) -> DataError:
        return DataError(f"datasets[{self._name!r}]: {path_of(fragment)} {what}")

    def _difference(self, fragment: pyarrow.dataset.Fragment) -> str:
        """Both schemas, if it may be them that cannot be reconciled."""
        import pyarrow as pa

        with contextlib.suppress(OSError, pa.ArrowException):
            own = fragment.physical_schema
            if not own.equals(self._schema, check_metadata=False):
                return f"\nit has {shown_schema(own)}\nand the data set {shown_schema(self._schema)}"
        return ""


def path_of(fragment: pyarrow.dataset.Fragment) -> str:
    """The path of a fragment, as it may be shown; ``"its data"`` if it is no file."""
    return redacted(getattr(fragment, "path", None) or "its data")


def shown_schema(schema: pa.Schema) -> str:
    """Names and types of columns, in one line."""
    return ", ".join(f"{each.name}: {each.type}" for each in schema) or "no columns"
