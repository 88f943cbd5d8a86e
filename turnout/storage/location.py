"""`StorageLocation`, a path on some filesystem: the few operations that a run's folder needs, each safe to be cut off.

On the local disk they are plain system calls; elsewhere they go through pyarrow, and are tried again when the storage
fails for a moment. Every failure is a `StorageError` that names the path and no secret.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from turnout.config import normalized_storage_path
from turnout.errors import StorageError
from turnout.failpoints import failpoint, failpoint_data
from turnout.filesystem import arrow_filesystem, redacted, resolve_uri
from turnout.retry import RetryPolicy, is_transient, storage_error

__all__ = ["Entry", "StorageLocation", "fsync_folder", "remove_tree"]

T = TypeVar("T")

# Filesystems of pyarrow's and fsspec's on which an object appears whole or not at all; others need a rename.
_OBJECT_STORES = ("s3", "gcs", "gs", "abfs", "abfss", "az", "memory")
_CHECK_RETRY = RetryPolicy(deadline_s=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something in a folder.

    Args:
        path: relative to the folder that was listed, with ``/``.
        size: bytes; 0 for a folder.
        is_folder: whether it is one.
    """

    path: str
    size: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """A path and the filesystem that it lies on; it pickles, and two are equal by path and filesystem.

    Args:
        path: absolute if local; else as the filesystem spells it (``bucket/folder``).
        filesystem: a `pyarrow.fs.FileSystem`; None is the local disk.
        retry: how requests to a remote storage are tried again.

    Example:
        >>> import tempfile
        >>> folder = StorageLocation.open(tempfile.mkdtemp())
        >>> (folder / "note.txt").put(b"kept")
        >>> (folder / "note.txt").read()
        b'kept'
    """

    path: str
    filesystem: Any = field(default=None, repr=False, hash=False)  # Any: pyarrow has no types
    retry: RetryPolicy = field(default_factory=RetryPolicy, repr=False, compare=False)

    @classmethod
    def open(
        cls,
        storage_path: str | os.PathLike[str],
        storage_filesystem: Any = None,  # Any: pyarrow's or fsspec's
        *,
        retry: RetryPolicy | None = None,
    ) -> StorageLocation:
        """Find the filesystem that ``storage_path`` lies on; nothing is read or written yet.

        Args:
            storage_path: a local path, a URI, or a path on ``storage_filesystem``.
            storage_filesystem: of pyarrow's or fsspec's, or None.
            retry: how requests to a remote storage are tried again.

        Raises:
            UsageError: it is no path.
            StorageError: no filesystem is known for the URI.
        """
        path = normalized_storage_path(storage_path, on_filesystem=storage_filesystem is not None)
        if storage_filesystem is None:
            filesystem, path = resolve_uri(path)
        else:
            filesystem = arrow_filesystem(storage_filesystem)
            if filesystem is None:
                path = os.path.abspath(path)
        return cls(path, filesystem, retry or RetryPolicy())

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine's disk, or on one that is mounted as such."""
        return self.filesystem is None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> StorageLocation:
        """The folder that it lies in."""
        return replace(self, path=self.path.rpartition("/")[0] or ("/" if self.is_local else ""))

    def __truediv__(self, name: str) -> StorageLocation:
        return replace(self, path=f"{self.path.rstrip('/')}/{name}" if self.path else name)

    def __str__(self) -> str:
        return redacted(self.path if self.is_local else f"{self.kind}://{self.path}")

    @property
    def kind(self) -> str:
        """The filesystem's short name: ``"local"``, ``"s3"``, ``"memory"`` and so on."""
        if self.filesystem is None:
            return "local"
        return str(self.filesystem.type_name).rpartition("+")[2]

    # -- reading

    def is_file(self) -> bool:
        """Whether a file stands here."""
        return self._type() == "file"

    def is_folder(self) -> bool:
        """Whether a folder stands here."""
        return self._type() == "folder"

    def exists(self) -> bool:
        """Whether anything stands here."""
        return self._type() != ""

    def size(self) -> int | None:
        """The file's size in bytes, or None if no file stands here."""
        if self.filesystem is None:
            try:
                return self._do("look at", lambda: os.stat(self.path).st_size) if os.path.isfile(self.path) else None
            except StorageError:
                return None
        info = self._do("look at", lambda: self.filesystem.get_file_info(self.path))
        return int(info.size) if info.is_file else None

    def read(self) -> bytes | None:
        """The file's bytes, or None if there is none.

        Raises:
            StorageError: it is there and cannot be read.
        """

        def read() -> bytes:
            if self.filesystem is None:
                with open(self.path, "rb") as file:
                    return file.read()
            with self.filesystem.open_input_file(self.path) as stream:
                return bytes(stream.read())

        try:
            return self._try(read, "read")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            if not self.is_local and "does not exist" in str(error).lower() and "bucket" not in str(error).lower():
                return None
            raise storage_error("read", str(self), error) from None

    def listing(self, *, recursive: bool = False) -> list[Entry]:
        """What is in the folder, sorted by path; empty if there is no folder."""
        return sorted(self._do("list", lambda: list(self._entries(recursive))), key=lambda entry: entry.path)

    def open_input(self) -> Any:  # Any: a binary stream of pyarrow's or Python's
        """A stream to read the file from; a context manager with ``read(size)``."""
        if self.filesystem is None:
            return self._do("read", lambda: open(self.path, "rb"))
        return self._do("read", lambda: self.filesystem.open_input_stream(self.path))

    # -- writing

    def make_folder(self) -> None:
        """Make the folder and those above it; an object store needs none, and gets none."""
        if self.filesystem is None:
            self._do("make the folder", lambda: os.makedirs(self.path, exist_ok=True))
        elif not self._is_object_store:
            self._do("make the folder", lambda: self.filesystem.create_dir(self.path, recursive=True))

    def put(self, data: bytes) -> None:
        """Put ``data`` in place of the file, whole or not at all, and on the disk before this returns."""
        failpoint("put.before")
        if self.filesystem is None:
            self._do("write", lambda: self._put_local(data), need=len(data))
        else:
            self._do("write", lambda: self._put_remote(data))
        failpoint("put.after")

    def create_exclusive(self, data: bytes) -> bool:
        """Make the file with ``data`` in it unless it is there; says whether this call made it.

        On a local filesystem one of two callers wins. Elsewhere it is a look and a put, between which another may come.
        """
        if self.filesystem is not None:
            if self.exists():
                return False
            self.put(data)
            return True
        partial = self._partial()

        def link() -> bool:
            with contextlib.suppress(FileNotFoundError):
                _write_flushed(partial, data)
                try:
                    os.link(partial, self.path)  # unlike a rename, it never replaces
                except FileExistsError:
                    return False
                finally:
                    os.unlink(partial)
                fsync_folder(os.path.dirname(self.path))
                return True
            raise FileNotFoundError(errno.ENOENT, "no such folder", os.path.dirname(self.path))

        return self._do("create", link, need=len(data))

    def open_output(self) -> Any:  # Any: a binary stream of pyarrow's or Python's
        """A stream that replaces the file; what it holds counts only once it was closed without an error."""
        if self.filesystem is None:
            return self._do("write", lambda: open(self.path, "wb"))

        def open_stream() -> Any:
            try:
                return self.filesystem.open_output_stream(self.path)
            except FileNotFoundError:
                self.filesystem.create_dir(self.parent.path, recursive=True)
                return self.filesystem.open_output_stream(self.path)

        return self._do("write", open_stream)

    def rename(self, target: StorageLocation) -> None:
        """Give the file or folder another name on the same filesystem; on an object store, copy it and delete it."""

        def move() -> None:
            if self.filesystem is None:
                os.rename(self.path, target.path)
                fsync_folder(os.path.dirname(target.path))
            elif self._is_object_store:
                for entry in self._entries(recursive=True):
                    if not entry.is_folder:
                        self.filesystem.copy_file((self / entry.path).path, (target / entry.path).path)
                self._delete_tree()
            else:
                self.filesystem.move(self.path, target.path)

        self._do(f"rename to {target.name}", move)

    def delete(self) -> None:
        """Remove the file, if there is one."""

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                if self.filesystem is None:
                    os.unlink(self.path)
                else:
                    self.filesystem.delete_file(self.path)

        if self.filesystem is None or self.is_file():
            self._do("delete", remove)

    def delete_tree(self) -> None:
        """Remove the folder and all that is in it, if there is one."""
        self._do("delete", self._delete_tree)

    # -- the early test

    def check_writable(self) -> None:
        """Make the folder, write a small file into it and remove it: the test before anything is started.

        Raises:
            StorageError: it cannot be written to; the text says why, within seconds.
        """
        location = replace(self, retry=_CHECK_RETRY)
        probe = location / f".turnout-write-test-{uuid.uuid4().hex}"
        remedy = "RunConfig.storage_path must name a folder that this process may write to"
        try:
            if location.is_local:
                os.makedirs(location.path, exist_ok=True)
                _write_flushed(probe.path, b"turnout")
                os.unlink(probe.path)
                return
            if location._try(lambda: location.filesystem.get_file_info(location.path).is_file, "look at"):
                raise NotADirectoryError("a file stands where a folder is meant")
            location.make_folder()
            location._try(lambda: probe._put_remote(b"turnout"), "write to")
            location._try(lambda: probe.filesystem.delete_file(probe.path), "delete in")
        except StorageError:
            raise
        except (FileExistsError, NotADirectoryError):
            raise StorageError(f"{self}: a file stands where a folder is meant. {remedy}.") from None
        except OSError as error:
            raise storage_error("write there", str(self), error, f"{remedy}.") from None

    # -- within

    @property
    def _is_object_store(self) -> bool:
        return self.kind in _OBJECT_STORES

    def _partial(self) -> str:
        folder, name = os.path.split(self.path)
        return os.path.join(folder, f".{name[:200]}.{uuid.uuid4().hex[:12]}.partial")

    def _type(self) -> str:
        if self.filesystem is None:
            return "folder" if os.path.isdir(self.path) else "file" if os.path.lexists(self.path) else ""
        info = self._do("look at", lambda: self.filesystem.get_file_info(self.path))
        return "file" if info.is_file else "" if info.type.name == "NotFound" else "folder"

    def _entries(self, recursive: bool) -> Iterator[Entry]:
        if self.filesystem is None:
            yield from _local_entries(self.path, "", recursive)
            return
        import pyarrow.fs

        inner = getattr(getattr(self.filesystem, "handler", None), "fs", None)
        if inner is not None and hasattr(inner, "invalidate_cache"):
            inner.invalidate_cache()  # some of fsspec's would show what was there before
        selector = pyarrow.fs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        prefix = len(self.path.strip("/")) + 1
        for info in self.filesystem.get_file_info(selector):
            path = info.path.strip("/")[prefix:]
            if path:
                yield Entry(path=path, size=int(info.size or 0), is_folder=not info.is_file)

    def _put_local(self, data: bytes) -> None:
        partial = self._partial()
        try:
            _write_flushed(partial, failpoint_data("put.write", data))
            failpoint("put.before_rename")
            os.replace(partial, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise
        fsync_folder(os.path.dirname(self.path))

    def _put_remote(self, data: bytes) -> None:
        data = failpoint_data("put.write", data)
        target = self if self._is_object_store else self.parent / os.path.basename(self._partial())
        with target.open_output() as stream:
            stream.write(data)
        if target is not self:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(self.path)  # HDFS moves onto nothing that exists
            self.filesystem.move(target.path, self.path)

    def _delete_tree(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.filesystem is None:
                shutil.rmtree(self.path)
            else:
                self.filesystem.delete_dir(self.path)

    def _try(self, function: Callable[[], T], doing: str) -> T:
        """Call ``function``, again if the storage is remote and fails for a moment; OSError passes as it is."""
        return function() if self.filesystem is None else self.retry.call(function, doing, str(self))

    def _do(self, doing: str, function: Callable[[], T], need: int = 0) -> T:
        """As `_try`, with a StorageError for an OSError."""
        try:
            return self._try(function, doing)
        except NotImplementedError as error:
            raise StorageError(f"{self}: a {self.kind} filesystem cannot {doing} it, and so store no runs") from error
        except OSError as error:
            if is_full(error):
                raise no_space(self, need, error) from error
            remedy = "It was tried again until the deadline" if not self.is_local and is_transient(error) else ""
            raise storage_error(doing, str(self), error, remedy) from None


def is_full(error: OSError) -> bool:
    """Whether the disk, or the quota on it, is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def no_space(location: StorageLocation, need: int, error: OSError) -> StorageError:
    """The error for a full disk: where, how much was needed, and how much there is."""
    available = "an unknown number of"
    folder = location.path
    while location.is_local and not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    if location.is_local:
        with contextlib.suppress(OSError):
            free = os.statvfs(folder)
            available = str(free.f_bavail * free.f_frsize)
    return StorageError(
        f"{location}: no space left ({os.strerror(error.errno or errno.ENOSPC)}): {need} bytes are needed, {available} "
        "bytes are available. Make room, or keep fewer checkpoints with CheckpointConfig(num_to_keep=...)"
    )


def remove_tree(path: str) -> None:
    """Remove a local folder as far as that can be done.

    Raises:
        KeyboardInterrupt: the user's. An interrupt at the wrong moment has `shutil.rmtree` close a descriptor twice,
            and raise an OSError of its own in its place.
    """
    try:
        shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


def fsync_folder(path: str) -> None:
    """Flush a local folder, so that the names in it survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks flush no folders
            raise
    finally:
        os.close(handle)


def _write_flushed(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _local_entries(folder: str, prefix: str, recursive: bool) -> Iterator[Entry]:
    try:
        children = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for child in children:
        path = prefix + child.name
        try:
            is_folder = child.is_dir(follow_symlinks=False)
            size = 0 if is_folder else child.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # removed since
        yield Entry(path=path, size=size, is_folder=is_folder)
        if is_folder and recursive:
            yield from _local_entries(child.path, f"{path}/", recursive)
