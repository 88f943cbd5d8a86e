"""`MetricsHistory`: every report of a run, appended while it trains and sealed into one Parquet file when it ends.

`append` only puts plain objects into a list. They are turned into lines and written in batches, by `flush`, which
whoever has a thread to spare calls about once a second; if nobody does, the caller of `append` pays for it once in
`BATCH_ROWS` rows. On the local disk the lines are appended to ``metrics.jsonl``; where a filesystem cannot append they
go to numbered segments, ``metrics-000000.jsonl`` and on, of which the last is put again until it is a mebibyte long.

A line is ``[index, rank, attempt, time, checkpoint, metrics]`` in Python's JSON, which keeps NaN and infinities.

The sealed file has a column for each metric whose values are all of one simple kind, named with ``/`` where nested; an
int among floats comes back as a float. All else stands as JSON in the column ``metrics_json``, so that a key that
changes its type breaks nothing. The file also says which part of the line files it holds, so that a crash before they
are removed counts no row twice.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from turnout.failpoints import failpoint
from turnout.storage.location import StorageLocation
from turnout.storage.record import checksum_of
from turnout.storage.run_folder import Attempt, RunFolder

__all__ = ["HistoryRow", "MetricsHistory", "history_dataframe", "last_metrics", "read_history"]

logger = logging.getLogger(__name__)

BATCH_ROWS = 1_000
"""Rows after which a batch is due; memory holds at most four times as many."""

_SEGMENT_BYTES = 1 << 20
_LINES = "metrics.jsonl"
_SEALED = "metrics.parquet"
_COVERED = b"turnout.covered"
_HEAD = 256
_GROUP_ROWS = 20_000
_FIXED = ("index", "rank", "attempt", "time", "checkpoint", "metrics_json")

_Row = tuple[int, int, int, float, "str | None", dict[str, Any]]  # Any: a metric is whatever JSON can hold


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One report of one rank.

    Args:
        index: which report of its attempt it is, from 0.
        rank: the world rank.
        attempt: that made it.
        time: when, in seconds since the epoch.
        checkpoint: the folder's name, if the report carried one.
        metrics: as they were reported.
    """

    index: int
    rank: int
    attempt: int
    time: float
    checkpoint: str | None
    metrics: dict[str, Any]  # Any: a metric is whatever JSON can hold


class MetricsHistory:
    """Writes a run's history. Appending is for one thread; flushing may be done by another.

    Args:
        run: the run; what it has already is kept and continued.
        has_flusher: whether another thread calls `flush` regularly, so that `append` need not do it at every batch.

    Example:
        >>> import tempfile
        >>> from turnout.storage.location import StorageLocation
        >>> from turnout.storage.run_folder import RunFolder
        >>> run = RunFolder(StorageLocation.open(tempfile.mkdtemp()), "run")
        >>> history = MetricsHistory(run)
        >>> history.append(0, 0, 0, {"loss": 0.5})
        >>> history.seal()
        >>> [row.metrics for row in read_history(run)]
        [{'loss': 0.5}]
    """

    def __init__(self, run: RunFolder, *, has_flusher: bool = False) -> None:
        self._run = run
        self._limit = BATCH_ROWS * (4 if has_flusher else 1)
        # Both ends of a deque may be used by two threads at once.
        self._rows: collections.deque[_Row] = collections.deque()
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._segment = -1
        self._segment_data = b""

    def append(
        self,
        index: int,
        rank: int,
        attempt: int,
        metrics: dict[str, Any],  # Any: a metric is whatever JSON can hold
        checkpoint_name: str | None = None,
    ) -> None:
        """Add a report; ``metrics`` must not be changed afterwards."""
        rows = self._rows
        rows.append((index, rank, attempt, time.time(), checkpoint_name, metrics))
        if len(rows) >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Write what has been appended; rows stay in memory if the storage refuses, and are written by the next call.

        Raises:
            StorageError: the storage refused.
        """
        if not self._rows:
            return
        with self._lock:
            rows = [self._rows.popleft() for _ in range(len(self._rows))]
            try:
                failpoint("history.before_write")
                if self._run.location.is_local:
                    self._append_local(_encoded(rows))
                else:
                    self._append_segment(_encoded(rows))
            except BaseException:
                self._rows.extendleft(reversed(rows))
                raise

    def close(self) -> None:
        """Write everything, and see to it that it is on the disk."""
        self.flush()
        with self._lock:
            if self._file is not None:
                self._run.location._do("flush", lambda: os.fsync(self._file.fileno()) if self._file else None)
                self._file.close()
                self._file = None

    def seal(self) -> None:
        """Write everything into ``metrics.parquet``, with what was sealed before, and remove the line files.

        A run that goes on afterwards appends to new line files; reading joins them.
        """
        self.close()
        with self._lock:
            _seal(self._run)
            self._segment = -1
            self._segment_data = b""

    # -- within

    def _append_local(self, lines: bytes) -> None:
        place = self._run.location / _LINES
        if self._file is None:
            self._run.location.make_folder()
            self._file = place._do("append to", lambda: open(place.path, "ab+", buffering=0))  # noqa: SIM115  # closed by `close`
            if self._file.seek(0, os.SEEK_END):
                self._file.seek(-1, os.SEEK_END)
                if self._file.read(1) != b"\n":
                    lines = b"\n" + lines  # a crash cut the last line short: it must not spoil the next
        file = self._file

        def write() -> None:
            rest = memoryview(lines)
            start = os.fstat(file.fileno()).st_size
            try:
                while rest:
                    rest = rest[os.write(file.fileno(), rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), start)  # all of a batch or none, as it is written again
                raise

        place._do("append to", write, need=len(lines))

    def _append_segment(self, lines: bytes) -> None:
        if self._segment < 0:
            taken = [int(name[8:14]) for name in [*_line_files(self._run), *_covered(self._run)] if name != _LINES]
            self._segment = max(taken, default=-1) + 1
        data = self._segment_data + lines
        (self._run.location / f"metrics-{self._segment:06d}.jsonl").put(data)
        if len(data) >= _SEGMENT_BYTES:
            self._segment, data = self._segment + 1, b""
        self._segment_data = data


def read_history(run: RunFolder) -> Iterator[HistoryRow]:
    """Every report of every rank and attempt, in the order in which they were written.

    Rows of attempts that were given up are among them; `history_dataframe` leaves them out.
    """
    sealed = run.location / _SEALED
    if sealed.is_file():
        yield from _sealed_rows(sealed)
    yield from _unsealed_rows(run)


def history_dataframe(run: RunFolder, *, rank: int = 0) -> Any:  # Any: a pandas.DataFrame
    """One rank's reports that count, as a `pandas.DataFrame`: a column for each metric, nested ones with ``/``.

    A report counts unless a later attempt went back behind it: of an older attempt's rows only those up to the
    checkpoint that the next one resumed from are shown. The frame's index counts the reports that are shown.

    Args:
        run: the run.
        rank: whose.
    """
    import pandas as pd

    info = run.info()
    rows = _counting(read_history(run), info.attempts if info else ())
    columns: dict[str, list[Any]] = {}  # Any: a metric is whatever JSON can hold
    length = 0
    for row in rows:
        if row.rank != rank:
            continue
        for key, value in _flattened(row.metrics):
            column = columns.setdefault(key, [])
            column.extend([None] * (length - len(column)))
            if type(value) is str and not value.isascii() and not _is_utf8(value):
                value = value.encode(errors="backslashreplace").decode()  # noqa: PLW2901  # pandas holds no half of a pair
            column[length:] = [value]  # where a nested metric and one with a slash meet, the later one counts
        length += 1
    for column in columns.values():
        column.extend([None] * (length - len(column)))
    return pd.DataFrame(columns, index=pd.RangeIndex(length, name="report"))


def last_metrics(run: RunFolder) -> dict[str, Any] | None:  # Any: a metric is whatever JSON can hold
    """Rank 0's last report that counts; None if there is none."""
    info = run.info()
    rows = _counting(read_history(run), info.attempts if info else ())
    return next((row.metrics for row in reversed(rows) if row.rank == 0), None)


def _counting(rows: Iterable[HistoryRow], attempts: Iterable[Attempt]) -> list[HistoryRow]:
    """Without those that a later attempt left behind."""
    kept = list(rows)
    for each in attempts:
        point = each.resumed_from
        if point is None:
            continue
        older = [i for i, row in enumerate(kept) if row.attempt < each.number]
        if point.name is None:
            cut = -1
        else:
            # The row that carried the checkpoint may be lost with the last batch: all that is left is older then.
            found = [i for i in older if kept[i].checkpoint == point.name and kept[i].attempt == point.attempt]
            cut = found[-1] if found else len(kept)
        kept = [row for i, row in enumerate(kept) if row.attempt >= each.number or i <= cut]
    return kept


# -- lines


def _encoded(rows: Iterable[_Row]) -> bytes:
    encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
    rows = list(rows)
    try:
        lines = [encode(row) for row in rows]
    except (ValueError, RecursionError):  # one that cannot be written must not hold up the others for ever
        lines = [encode((*row[:-1], _writable(row[-1]))) for row in rows]
    lines.append("")
    return "\n".join(lines).encode()


def _writable(metrics: dict[str, Any]) -> dict[str, Any]:  # Any: as in HistoryRow
    """The metrics, with a word in place of each that JSON's encoder refuses: an integer of thousands of digits, say."""
    written = {}
    for key, value in metrics.items():
        try:
            json.dumps(value)
            written[key] = value
        except (ValueError, RecursionError) as error:
            written[key] = f"not written: {error}"
    return written


def _decoded(lines: Iterable[bytes], place: object) -> Iterator[HistoryRow]:
    for line in lines:
        try:
            index, rank, attempt, at, name, metrics = json.loads(line)
            yield HistoryRow(index, rank, attempt, at, name, metrics)
        except (ValueError, TypeError):
            if line.strip():
                logger.info("%s: a line that a crash cut short is left out", place)


def _line_files(run: RunFolder) -> list[str]:
    names = [e.path for e in run.location.listing() if not e.is_folder and e.path.startswith("metrics")]
    return sorted(name for name in names if name == _LINES or (name.endswith(".jsonl") and name[8:14].isdigit()))


def _covered(run: RunFolder) -> dict[str, list[Any]]:  # Any: a length and a checksum
    """Which line files, and how much of each, the sealed file holds."""
    sealed = run.location / _SEALED
    if not sealed.is_file():
        return {}
    import pyarrow.parquet as pq

    metadata = pq.read_schema(_source_of(sealed)).metadata or {}
    covered: dict[str, list[Any]] = json.loads(metadata.get(_COVERED, b"{}"))
    return covered


def _source_of(sealed: StorageLocation) -> Any:  # Any: a path, or a stream of pyarrow's
    """What the sealed file is read from; a remote one is read whole first, as that can be asked for again."""
    if sealed.is_local:
        return sealed.path
    import pyarrow as pa

    return pa.BufferReader(sealed.read() or b"")


def _head_of(place: StorageLocation, size: int) -> bytes:
    with place.open_input() as stream:
        return bytes(stream.read(min(size, _HEAD)))


def _unsealed_rows(run: RunFolder) -> Iterator[HistoryRow]:
    files = _line_files(run)
    covered = _covered(run) if files else {}
    for name in files:
        place = run.location / name
        length, head = covered.get(name, (0, ""))
        if run.location.is_local:
            with open(place.path, "rb") as file:
                if length and checksum_of([file.read(min(length, _HEAD))]) == head:
                    file.seek(length)
                else:
                    file.seek(0)
                yield from _decoded(file, place)
        else:
            data = place.read() or b""
            if length and checksum_of([data[: min(length, _HEAD)]]) == head:
                data = data[length:]
            yield from _decoded(data.splitlines(), place)


# -- the sealed file


def _seal(run: RunFolder) -> None:
    files = _line_files(run)
    if not files:
        return
    import pyarrow.parquet as pq

    covered = _covered(run)
    for name in files:
        place = run.location / name
        size = place.size() or 0
        head = place._do("read", functools.partial(_head_of, place, size))
        covered[name] = [size, checksum_of([head])]
    kinds: dict[str, dict[str, str]] = {}
    for row in read_history(run):
        _learn(kinds, row.metrics)
    columns = {path: kind for paths in kinds.values() if _JSON not in paths.values() for path, kind in paths.items()}
    schema = _schema(columns).with_metadata({_COVERED: json.dumps(covered).encode()})
    with contextlib.ExitStack() as cleanup:
        if run.location.is_local:
            partial = (run.location / _SEALED)._partial()
            cleanup.callback(_unlink_quietly, partial)
        else:
            partial = os.path.join(cleanup.enter_context(tempfile.TemporaryDirectory()), _SEALED)
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            for batch in _batched(read_history(run)):
                writer.write_table(_table(batch, columns, schema))
        failpoint("history.before_seal")
        with open(partial, "rb") as file:
            if run.location.is_local:
                os.fsync(file.fileno())
                StorageLocation(partial).rename(run.location / _SEALED)
            else:
                (run.location / _SEALED).put(file.read())
    failpoint("history.after_seal")
    for name in files:
        (run.location / name).delete()


_JSON = "json"


def _learn(kinds: dict[str, dict[str, str]], metrics: dict[str, Any]) -> None:  # Any: as in HistoryRow
    """Note of which kind each metric's values are; a top-level key is kept as JSON if any value of it is not simple."""
    for key, value in metrics.items():
        paths = kinds.setdefault(key, {})
        if type(value) is float and paths.get(key) == "float":  # the usual case, made quick
            continue
        for path, leaf in _leaves((key,), value):
            kind = _kind(path, leaf)
            known = paths.setdefault(path, kind)
            if known != kind:
                paths[path] = "float" if {known, kind} == {"float", "int"} else _JSON


def _kind(path: str, leaf: Any) -> str:  # Any: as in HistoryRow
    if path in _FIXED or path.startswith("\0"):
        return _JSON
    if type(leaf) is int:
        return "int" if abs(leaf) < 1 << 53 else _JSON  # what a float holds exactly, should floats come
    if type(leaf) is str:
        return "str" if leaf.isascii() or _is_utf8(leaf) else _JSON
    return {float: "float", bool: "bool"}.get(type(leaf), _JSON)


def _is_utf8(text: str) -> bool:
    """Whether it can be encoded: half of a surrogate pair cannot, and JSON escapes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _leaves(parts: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:  # Any: as in HistoryRow
    """The values within, with their paths; a path that would not lead back begins with NUL."""
    if isinstance(value, dict) and value:
        for inner, each in value.items():
            yield from _leaves((*parts, inner), each)
    else:
        path = "/".join(parts)
        yield (f"\0{path}" if path.count("/") >= len(parts) or not path else path), value


def _schema(columns: dict[str, str]) -> Any:  # Any: a pyarrow.Schema
    import pyarrow as pa

    kinds = {"float": pa.float64(), "int": pa.int64(), "str": pa.string(), "bool": pa.bool_()}
    fixed = [("index", pa.int64()), ("rank", pa.int32()), ("attempt", pa.int32()), ("time", pa.float64())]
    text = [("checkpoint", pa.string()), ("metrics_json", pa.string())]
    return pa.schema([*fixed, *text, *((path, kinds[kind]) for path, kind in columns.items())])


def _table(rows: list[HistoryRow], columns: dict[str, str], schema: Any) -> Any:  # Any: pyarrow's Schema and Table
    import pyarrow as pa

    values: dict[str, list[Any]] = {path: [None] * len(rows) for path in columns}
    texts: list[str | None] = [None] * len(rows)
    for number, row in enumerate(rows):
        rest = {}
        for key, value in row.metrics.items():
            if type(value) is not dict:
                if key in columns and "/" not in key:
                    values[key][number] = value
                else:
                    rest[key] = value
                continue
            leaves = list(_leaves((key,), value))
            if all(path in columns for path, _ in leaves):
                for path, leaf in leaves:
                    values[path][number] = leaf
            else:
                rest[key] = value
        if rest:
            texts[number] = json.dumps(rest)
    for name in _FIXED[:-1]:
        values[name] = [getattr(row, name) for row in rows]
    values["metrics_json"] = texts
    arrays = [pa.array(values[name], type=schema.field(name).type, from_pandas=False) for name in schema.names]
    return pa.Table.from_arrays(arrays, schema=schema)


def _sealed_rows(sealed: StorageLocation) -> Iterator[HistoryRow]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(_source_of(sealed)) as file:
        paths = [name for name in file.schema_arrow.names if name not in _FIXED]
        nested = [(path, path.split("/")) for path in paths]
        for batch in file.iter_batches(_GROUP_ROWS):
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            leaves = [(parts, columns[path]) for path, parts in nested]
            fixed_columns = zip(*(columns[name] for name in _FIXED), strict=True)
            for number, (index, rank, attempt, at, checkpoint, text) in enumerate(fixed_columns):
                metrics: dict[str, Any] = {}
                for parts, column in leaves:
                    if (value := column[number]) is not None:
                        inner = metrics
                        for part in parts[:-1]:
                            inner = inner.setdefault(part, {})
                        inner[parts[-1]] = value
                if text is not None:
                    metrics.update(json.loads(text))
                yield HistoryRow(index, rank, attempt, at, checkpoint, metrics)


def _unlink_quietly(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _batched(rows: Iterable[HistoryRow]) -> Iterator[list[HistoryRow]]:
    iterator = iter(rows)
    while batch := list(itertools.islice(iterator, _GROUP_ROWS)):
        yield batch


def _flattened(metrics: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:  # Any: as in HistoryRow
    for key, value in metrics.items():
        if isinstance(value, dict) and value:
            yield from _flattened(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value
