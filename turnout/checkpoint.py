"""`Checkpoint`, a handle to a folder of files on some filesystem, and what is known of a reported one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from turnout.checks import check_filesystem, check_json, check_mapping, check_text, refused
from turnout.errors import CheckpointNotFoundError
from turnout.filesystem import arrow_filesystem, download, kind_of, local_filesystem, resolve_uri
from turnout.retry import patiently

__all__ = ["METADATA_FILE", "Checkpoint", "ReportedCheckpoint", "ReportedCheckpointStatus"]

METADATA_FILE = ".metadata.json"
"""Where `Checkpoint.set_metadata` writes, inside the checkpoint's folder (the name that `ray.train` uses)."""


class Checkpoint:
    """A handle to a folder that holds a checkpoint; it holds no data itself.

    It is small, pickles to any process, and equals another by path and filesystem. Handles do not change, and a copy
    of one is itself.

    Args:
        path: a local folder, a URI such as ``s3://bucket/folder``, or a path on ``filesystem``.
        filesystem: a filesystem of pyarrow's or fsspec's; None for local paths and URIs.

    Raises:
        UsageError: ``path`` is no path.
        StorageError: no filesystem is known for the URI.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Checkpoint(folder).set_metadata({"epoch": 3})
        ...     Checkpoint(folder).get_metadata()
        {'epoch': 3}
    """

    __slots__ = ("_filesystem", "_keeper", "_path")

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:  # Any: pyarrow has no types
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        check_text("Checkpoint.path", text, "a folder's path or URI")
        if filesystem is not None:
            check_filesystem("Checkpoint.filesystem", filesystem)
            if "://" in text:
                raise refused("Checkpoint.path", text, "with filesystem= it is a path on that filesystem, and no URI")
        self._filesystem = arrow_filesystem(filesystem)
        if filesystem is None:
            self._filesystem, self._path = resolve_uri(text)
        elif self._filesystem is None:
            self._path = os.path.abspath(text)
        else:
            self._path = text.rstrip("/")
        self._keeper: Any = None  # Any: whatever keeps a temporary folder alive while this handle does

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a handle to a local folder."""
        return cls(path)

    @property
    def path(self) -> str:
        """The folder's path on its filesystem."""
        return self._path

    @property
    def filesystem(self) -> Any:  # Any: pyarrow has no types
        """The `pyarrow.fs.FileSystem` that the folder lies on."""
        return local_filesystem() if self._filesystem is None else self._filesystem

    @property
    def is_local(self) -> bool:
        """Whether the folder lies on this machine's disk, or on one that is mounted as such."""
        return self._filesystem is None

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the checkpoint's files into a local folder.

        Args:
            path: the folder, made if need be; files in it that the checkpoint has too are replaced. None makes a
                temporary one, which is the caller's to remove.

        Returns:
            The folder's path.

        Raises:
            CheckpointNotFoundError: the checkpoint's folder is not there.
        """
        self._require()
        if path is None:
            target = tempfile.mkdtemp(prefix="turnout-checkpoint-")
        else:
            check_text("to_directory(): path", os.fspath(path), "a folder's path")
            target = os.path.abspath(os.path.expanduser(path))
            if os.path.exists(target) and (not os.path.isdir(target) or os.path.realpath(target) == self._path):
                remedy = "takes a folder that is not the checkpoint's own, or one that is to be made"
                raise refused("to_directory(): path", path, remedy)
        if self._filesystem is None:
            shutil.copytree(self._path, target, dirs_exist_ok=True)
        else:
            patiently(lambda: download(self._filesystem, self._path, target), "download", self._path)
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give a local folder to read the checkpoint from: its own if it is local, else a download.

        Concurrent processes on a node share one download; it is removed after the last of them leaves.

        Yields:
            The folder's path. Treat it as read-only: others read it too, and for a local checkpoint it is the
            checkpoint itself.

        Raises:
            CheckpointNotFoundError: the checkpoint's folder is not there.
        """
        self._require()
        if self._filesystem is None:
            yield self._path
            return
        from turnout.shared_download import shared_download  # a third of what importing Turnout would take

        with shared_download(self._filesystem, self._path, self.to_directory) as folder:
            yield folder

    def get_metadata(self) -> dict[str, Any]:  # Any: whatever JSON can hold
        """What `set_metadata` stored beside the files; empty if nothing was."""
        self._require()
        location = f"{self._path}/{METADATA_FILE}"
        if self._filesystem is None:
            if not os.path.exists(location):
                return {}
            with open(location, encoding="utf-8") as file:
                text = file.read()
        else:

            def read() -> bytes:
                with self._filesystem.open_input_file(location) as file:
                    return bytes(file.read())

            try:
                text = patiently(read, "read", location).decode()
            except FileNotFoundError:
                return {}
        metadata: dict[str, Any] = json.loads(text)
        return metadata

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Store ``metadata`` beside the files, in place of what was there.

        Args:
            metadata: what JSON can hold.

        Raises:
            UsageError: it is no dict, or JSON cannot hold it.
        """
        self._require()
        text = check_json("metadata", metadata, "what JSON can hold")
        location = f"{self._path}/{METADATA_FILE}"
        if self._filesystem is None:
            partial = f"{location}.partial"
            with open(partial, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(partial, location)
        else:

            def write() -> None:
                with self._filesystem.open_output_stream(location) as stream:
                    stream.write(text.encode())

            patiently(write, "write", location)

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Add ``metadata`` to what is stored; a key that is there already is replaced."""
        check_mapping("metadata", metadata, "what JSON can hold")
        self.set_metadata({**self.get_metadata(), **metadata})

    def _require(self) -> None:
        if self._filesystem is None:
            found, is_folder = os.path.exists(self._path), os.path.isdir(self._path)
        else:
            kind = patiently(lambda: kind_of(self._filesystem, self._path), "look at", self._path)
            found, is_folder = kind != "", kind == "folder"
        if not is_folder:
            reason = "is a file; a checkpoint is a folder: put the file into one" if found else "does not exist"
            raise CheckpointNotFoundError(f"{self!r}: {self._path} {reason}")

    def _kept_by(self, keeper: Any) -> Checkpoint:
        """The same handle, which holds on to ``keeper``, whose folder it is to remove once no handle is left."""
        self._keeper = keeper
        return self

    def __fspath__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is not a path, since its files may be remote: use `with checkpoint.as_directory() as folder:` "
            "or `checkpoint.to_directory()`"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        if self._path != other._path or self.is_local != other.is_local:
            return False
        return self.is_local or bool(self._filesystem.equals(other._filesystem))

    def __hash__(self) -> int:
        return hash(("Checkpoint", self._path))

    def __copy__(self) -> Checkpoint:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Checkpoint:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._keeper is not None:
            # The copy that is about to travel cannot be watched from here.
            self._keeper.keep_until_exit()
        return Checkpoint, (self._path, self._filesystem)

    def __repr__(self) -> str:
        place = "" if self._filesystem is None else f", filesystem={self._filesystem!r}"
        return f"Checkpoint(path={self._path!r}{place})"


class ReportedCheckpointStatus(Enum):
    """How far a reported checkpoint has come."""

    COMMITTED = "COMMITTED"
    PENDING_VALIDATION = "PENDING_VALIDATION"
    VALIDATED = "VALIDATED"
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    VALIDATION_FAILED = "VALIDATION_FAILED"


@dataclass(frozen=True, slots=True)
class ReportedCheckpoint:
    """A committed checkpoint, the metrics it was reported with, and its status.

    Args:
        checkpoint: the handle.
        metrics: rank 0's, with those of its validation merged in.
        status: how far it has come.
    """

    checkpoint: Checkpoint
    metrics: dict[str, Any]  # Any: a metric is whatever JSON can hold
    status: ReportedCheckpointStatus = ReportedCheckpointStatus.COMMITTED
