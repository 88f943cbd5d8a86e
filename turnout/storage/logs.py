"""`RunLogs`: what the ranks of a run print, kept in its folder as ``logs/rank_<n>.log``.

On the local disk it is appended the moment it comes, for whoever follows the file. Where a filesystem cannot append it
waits in memory for `flush`, which whoever has a thread to spare calls about once a second, and goes to numbered
segments, ``rank_<n>-000000.log`` and on, of which the last is put again until it is a mebibyte long.

A log is for people: one that cannot be written is told of once, and ends nothing.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from typing import IO, Protocol

from turnout.errors import StorageError
from turnout.storage.location import StorageLocation
from turnout.storage.run_folder import RunFolder

__all__ = ["RunLogs", "read_log"]

logger = logging.getLogger(__name__)

_SEGMENT_BYTES = 1 << 20
_WAITING_BYTES = 16 << 20
"""What a log may hold in memory while its storage does not take it; what comes then is left out."""


class RunLogs:
    r"""Writes a run's logs. Any thread may add to them, and another may flush meanwhile.

    Args:
        run: the run; what its logs have already is kept and continued.

    Example:
        >>> import tempfile
        >>> run = RunFolder(StorageLocation.open(tempfile.mkdtemp()), "run")
        >>> logs = RunLogs(run)
        >>> logs.add("rank_0", b"epoch 1\n")
        >>> read_log(run, "rank_0")
        b'epoch 1\n'
        >>> logs.close()
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._attempt = 0
        self._logs: dict[str, _Log] = {}
        self._attempt_of: dict[str, int] = {}
        self._lock = threading.Lock()
        self._has_warned = False

    def begin_attempt(self, number: int) -> None:
        """What is added from here on is of this attempt; a line in between says so."""
        self._attempt = number

    def add(self, name: str, data: bytes) -> None:
        """Add to a log.

        Args:
            name: of the log: ``"rank_0"``.
            data: as it was printed.
        """
        with self._lock:
            log = self._logs.get(name)
            if log is None:
                log = self._logs[name] = (_AppendedLog if self._run.location.is_local else _SegmentedLog)(
                    self._run.logs, name
                )
            is_new = self._attempt_of.get(name) != self._attempt
            try:
                log.add(f"--- attempt {self._attempt} ---\n".encode() if is_new else b"", data)
                self._attempt_of[name] = self._attempt
            except (StorageError, OSError) as error:
                self._warn(error)

    @property
    def has_waiting(self) -> bool:
        """Whether there is anything for `flush` to write."""
        return any(log.has_waiting for log in list(self._logs.values()))

    def flush(self) -> None:
        """Write what waits in memory; what the storage refuses goes on to wait."""
        self._for_each("flush")

    def close(self) -> None:
        """Write what waits, and let go of the files; what is added later begins anew."""
        self._for_each("close")

    def _for_each(self, what: str) -> None:
        for log in list(self._logs.values()):
            try:
                getattr(log, what)()
            except (StorageError, OSError) as error:
                self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("run %r: what ranks print cannot be kept in %s: %s", self._run.name, self._run.logs, error)


def read_log(run: RunFolder, name: str) -> bytes:
    """All that a log holds, of all attempts.

    Args:
        run: the run.
        name: of the log: ``"rank_0"``.
    """
    appended = (run.logs / f"{name}.log").read() or b""
    return appended + b"".join((run.logs / segment).read() or b"" for segment in _segments(run.logs, name))


class _Log(Protocol):
    """One log, in one of the two ways."""

    @property
    def has_waiting(self) -> bool:
        """Whether there is anything for `flush` to write."""

    def add(self, mark: bytes, data: bytes) -> None:
        """Add ``data``, and ``mark`` before it, on a line of its own, if the log holds anything already."""

    def flush(self) -> None:
        """Write what waits."""

    def close(self) -> None:
        """Write what waits, and let go of the file."""


class _AppendedLog:
    has_waiting = False

    def __init__(self, folder: StorageLocation, name: str) -> None:
        self._folder = folder
        self._place = folder / f"{name}.log"
        self._file: IO[bytes] | None = None
        self._last = b""
        """The last byte that the file holds, if it holds any."""

    def add(self, mark: bytes, data: bytes) -> None:
        if self._file is None:
            self._folder.make_folder()
            self._file = self._place._do("append to", self._opened)
        if mark and self._last:
            data = (b"" if self._last == b"\n" else b"\n") + mark + data
        file = self._file

        def write() -> None:
            rest = memoryview(data)
            while rest:
                count = os.write(file.fileno(), rest)
                self._last, rest = bytes(rest[count - 1 : count]), rest[count:]

        self._place._do("append to", write, need=len(data))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> IO[bytes]:
        file = open(self._place.path, "ab+", buffering=0)  # noqa: SIM115  # closed by `close`
        size = file.seek(0, os.SEEK_END)
        self._last = os.pread(file.fileno(), 1, size - 1) if size else b""
        return file


class _SegmentedLog:
    def __init__(self, folder: StorageLocation, name: str) -> None:
        self._folder = folder
        self._name = name
        self._lock = threading.Lock()  # of what waits: it is not held while the storage writes
        self._waiting = bytearray()
        self._num_left_out = 0
        self._first_mark: bytes | None = None
        """Stands before all else, should an earlier driver have left segments; they are listed by the first flush."""
        self._writing = threading.Lock()
        self._number = -1
        self._segment = b""

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, mark: bytes, data: bytes) -> None:
        with self._lock:
            if self._first_mark is None:
                self._first_mark = b"\n" + mark
            elif mark:
                self._waiting += b"" if self._waiting.endswith(b"\n") else b"\n"
                self._waiting += mark
            if len(self._waiting) > _WAITING_BYTES:
                self._num_left_out += len(data)
            else:
                self._waiting += data

    def flush(self) -> None:
        with self._writing:
            with self._lock:
                size = len(self._waiting)
                data = bytes(self._waiting)
            if not data:
                return
            if self._number < 0:
                segments = _segments(self._folder, self._name)
                self._number = int(segments[-1][-10:-4]) + 1 if segments else 0
                self._segment = (self._first_mark or b"") if segments else b""
            self._folder.make_folder()
            segment = self._segment + data
            (self._folder / f"{self._name}-{self._number:06d}.log").put(segment)
            if len(segment) >= _SEGMENT_BYTES:
                self._number, segment = self._number + 1, b""
            self._segment = segment
            with self._lock:
                del self._waiting[:size]
                if self._num_left_out:
                    told = f"\n--- {self._num_left_out} bytes are left out: the storage did not take them in time ---\n"
                    self._waiting += told.encode()
                    self._num_left_out = 0

    def close(self) -> None:
        self.flush()
        self.flush()  # what it had to say of bytes that were left out


def _segments(folder: StorageLocation, name: str) -> list[str]:
    pattern = re.compile(re.escape(name) + r"-\d{6}\.log")
    return [entry.path for entry in folder.listing() if pattern.fullmatch(entry.path)]
