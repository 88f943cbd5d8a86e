"""Carrying files into storage: checksummed as they pass, and on the disk before they count.

Local disk: a file is written in one stream while the kernel is told to begin writing it back, so that the flush at the
end finds little left to do. Small files are written many at a time, and flushed once all of a batch are written: the
first flush then commits the file system's journal for nearly all of them. Elsewhere each file is one stream of its own,
tried again as a whole when the storage fails for a moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from turnout.errors import CheckpointError
from turnout.failpoints import failpoint, failpoint_data
from turnout.retry import storage_error
from turnout.storage.location import StorageLocation, fsync_folder, is_full, no_space
from turnout.storage.parallel import in_threads
from turnout.storage.record import FileEntry, checksum_of
from turnout.storage.sources import SourceFile

__all__ = ["checksums", "take", "upload"]

_CHUNK = 4 << 20  # bytes that a remote stream is given at a time
# Bytes that pass at a time on the local disk: recent kernels cache files in folios as large as the write, up to 2 MiB,
# and it seems that a virtual machine then takes memory first that it has given back to its host: on one (Linux 6.18,
# ext4) writes of 4 MiB took 0.3 to 2.5 s for a GiB, those of 64 KiB 0.4 s, and 0.9 s at the worst.
_PIECE = 64 << 10
_LARGE = 8 << 20  # from this size on a file has a stream for itself
_BATCH = 256  # files that are open at a time
_KICK = 32 << 20  # bytes after which the kernel is told to write back
_LOCAL_THREADS = 2
_FLUSH_THREADS = 4
_REMOTE_THREADS = 8
_FICLONE = 0x40049409  # linux/fs.h
_WRITE_BACK = 2  # SYNC_FILE_RANGE_WRITE: begin, do not wait


def upload(
    files: Sequence[SourceFile],
    targets: Mapping[str, str],
    folder: StorageLocation,
    *,
    rank: int,
    move: bool = False,
) -> list[FileEntry]:
    """Store ``files`` in ``folder``; what is returned is on the disk, along with its names.

    Args:
        files: as they were scanned.
        targets: from a file's path to the one in ``folder``; files that are not in it are left out.
        folder: the checkpoint's, made if need be.
        rank: of the caller, for the record.
        move: on one local filesystem, give a file a second name instead of copying it; its owner must not write to it
            any more. Files that lie elsewhere, or have other names already, are copied. The source stays, and is the
            caller's to remove.

    Raises:
        CheckpointError: a source changed meanwhile.
        StorageError: the storage refused, failed or is full; what was written is removed as far as possible.
    """
    wanted = [(file, targets[file.path]) for file in files if file.path in targets]
    written: dict[str, int] = {}
    folder.make_folder()
    try:
        if folder.is_local:
            entries = _upload_local(wanted, folder, rank, move, written)
        else:
            entries = _upload_remote(wanted, folder, rank)
    except BaseException as error:
        for path, inode in list(written.items()):  # an interrupt leaves threads at work
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == inode:  # else a newer attempt has put its own file there
                    os.unlink(path)
        if isinstance(error, FileExistsError):
            raise CheckpointError(
                f"{error.filename2 or error.filename} is there already: another attempt of this run writes the same "
                "checkpoint; the one of the two that is older cannot commit any more"
            ) from error
        if isinstance(error, OSError):
            place = StorageLocation(error.filename) if isinstance(error.filename, str) else folder
            if is_full(error):
                raise no_space(place, sum(file.size for file, _ in wanted), error) from error
            raise storage_error("store the checkpoint", str(folder), error) from error
        raise
    for file, _ in wanted:
        _refuse_changed(file)
    return sorted(entries, key=lambda entry: entry.path)


def checksums(files: Iterable[SourceFile]) -> dict[str, str]:
    """The checksum of each file, by path."""
    found = {}
    for file in files:
        with open(file.source, "rb") as stream:
            found[file.path] = checksum_of(_chunks(stream))
        _refuse_changed(file)
    return found


def take(files: Sequence[SourceFile], staging: str, *, link: bool) -> list[SourceFile]:
    """Take files aside so that the caller may remove its own; returns them as they lie in ``staging``.

    Nothing is flushed: that is for the upload that follows. A file that cannot be linked is cloned where the filesystem
    can (so-called reflinks), else copied.

    Args:
        files: as they were scanned.
        staging: a local folder, made if need be.
        link: give them a second name where both lie on one filesystem; their owner must not write to them any more.

    Raises:
        CheckpointError: a source changed meanwhile.
        StorageError: the disk refused or is full.
    """
    taken = []
    try:
        os.makedirs(staging, exist_ok=True)
        for file in files:
            target = os.path.join(staging, file.path.rstrip("/"))
            if file.is_folder:
                os.makedirs(target, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if not (link and file.is_own and _linked(file.source, target)):
                    _clone(file.source, target)
                _refuse_changed(file)
            info = os.stat(target)
            taken.append(SourceFile(file.path, target, file.size, info.st_mtime_ns, info.st_ino))
    except OSError as error:
        if is_full(error):
            raise no_space(StorageLocation(staging), sum(file.size for file in files), error) from error
        raise storage_error("take the checkpoint's files", staging, error) from error
    return taken


# -- local


def _upload_local(
    wanted: Sequence[tuple[SourceFile, str]], folder: StorageLocation, rank: int, move: bool, written: dict[str, int]
) -> list[FileEntry]:
    root = folder.path
    folders = {os.path.dirname(os.path.join(root, target)) for _, target in wanted} | {root}
    for path in sorted(folders):
        os.makedirs(path, exist_ok=True)
    entries = []
    small: list[tuple[SourceFile, str]] = []
    for file, target in wanted:
        path = os.path.join(root, target.rstrip("/"))
        if file.is_folder:
            os.makedirs(path, exist_ok=True)
            entries.append(FileEntry(target, 0, None, rank))
        elif file.size >= _LARGE:
            handle, checksum = _store(file, path, move, rank, written)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            entries.append(FileEntry(target, file.size, checksum, rank))
        else:
            small.append((file, target))
    for start in range(0, len(small), _BATCH):
        entries += _store_batch(small[start : start + _BATCH], root, move, rank, written)
    # A folder's names are flushed after its files, and a folder after those in it.
    for path in [*sorted(_with_parents(folders, root), reverse=True), os.path.dirname(root)]:
        fsync_folder(path)
    return entries


def _store_batch(
    batch: Sequence[tuple[SourceFile, str]], root: str, move: bool, rank: int, written: dict[str, int]
) -> list[FileEntry]:
    paths = [os.path.join(root, target) for _, target in batch]
    handles: list[int] = []

    def store(index: int) -> str:
        handle, checksum = _store(batch[index][0], paths[index], move, rank, written)
        handles.append(handle)
        return checksum

    try:
        if len(batch) == 1:
            found = [store(0)]
            os.fsync(handles[0])
        else:
            found = in_threads(store, range(len(batch)), num_threads=_LOCAL_THREADS, name="turnout-upload")
            in_threads(os.fsync, handles, num_threads=_FLUSH_THREADS, name="turnout-upload")
    finally:
        for handle in handles:
            os.close(handle)
    return [FileEntry(target, file.size, checksum, rank) for (file, target), checksum in zip(batch, found, strict=True)]


def _store(file: SourceFile, path: str, move: bool, rank: int, written: dict[str, int]) -> tuple[int, str]:
    """Store a file under its new name; returns a handle to flush and close, and the checksum.

    Rank 0 has made way, so that a file that is there is another attempt's, which may have committed it: it is never
    written into nor replaced.
    """
    failpoint("upload.file", rank)
    if move and file.is_own and _linked(file.source, path):
        written[path] = file.inode
        target = os.open(path, os.O_RDONLY)
        try:
            return target, checksum_of(_read(target))
        except BaseException:
            os.close(target)
            raise
    source = os.open(file.source, os.O_RDONLY)
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        written[path] = os.fstat(target).st_ino
        try:
            return target, checksum_of(_copied(source, target, path, rank))
        except BaseException:
            os.close(target)
            raise
    finally:
        os.close(source)


def _copied(source: int, target: int, path: str, rank: int) -> Iterator[memoryview]:
    """Copy, and pass on what is copied."""
    pending = 0
    start = 0
    for chunk in _read(source):
        failpoint("upload.chunk", rank)
        _write_all(target, chunk, path)
        yield chunk
        pending += len(chunk)
        if pending >= _KICK:
            _begin_write_back(target, start, pending)
            start += pending
            pending = 0
    _begin_write_back(target, start, 0)


def _read(source: int) -> Iterator[memoryview]:
    size = os.fstat(source).st_size
    buffer = memoryview(bytearray(max(1, min(_PIECE, size))))
    while count := os.readv(source, [buffer]):
        yield buffer[:count]


def _write_all(target: int, chunk: memoryview, path: str) -> None:
    try:
        while chunk:
            chunk = chunk[os.write(target, chunk) :]
    except OSError as error:
        error.filename = path
        raise


def _linked(source: str, target: str) -> bool:
    """Whether ``target`` could be made another name of the file ``source``."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
            return False
        raise
    return True


def _clone(source: str, target: str) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
            return
        except OSError as error:
            if is_full(error):
                raise
        while os.sendfile(writer.fileno(), reader.fileno(), None, 1 << 30):
            pass


def _with_parents(folders: Iterable[str], root: str) -> set[str]:
    found = set()
    for path in folders:
        while len(path) >= len(root):
            found.add(path)
            path = os.path.dirname(path)  # noqa: PLW2901  # climbs
    return found


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


def _begin_write_back(handle: int, start: int, length: int) -> None:
    """Tell the kernel to begin writing back; a length of 0 means to the end. Only a hint: errors show at the flush."""
    function = _sync_file_range()
    if function is not None:
        function(handle, start, length, _WRITE_BACK)


# -- remote


def _upload_remote(wanted: Sequence[tuple[SourceFile, str]], folder: StorageLocation, rank: int) -> list[FileEntry]:
    def store(item: tuple[SourceFile, str]) -> FileEntry:
        file, target = item
        if file.is_folder:
            return FileEntry(target, 0, None, rank)
        place = folder / target
        expected_s = file.size / 1e6
        checksum = place.retry.call(lambda: _streamed(file, place, rank), "upload", str(place), expected_s=expected_s)
        return FileEntry(target, file.size, checksum, rank)

    return in_threads(store, wanted, num_threads=_REMOTE_THREADS, name="turnout-upload")


def _streamed(file: SourceFile, place: StorageLocation, rank: int) -> str:
    failpoint("upload.file", rank)
    with open(file.source, "rb") as source, place.open_output() as stream:

        def passed() -> Iterator[bytes]:
            for chunk in _chunks(source):
                failpoint("upload.chunk", rank)
                stream.write(failpoint_data("upload.data", chunk, rank))
                yield chunk

        return checksum_of(passed())


def _chunks(stream: object) -> Iterator[bytes]:
    return iter(lambda: stream.read(_CHUNK), b"")  # type: ignore[attr-defined]


def _refuse_changed(file: SourceFile) -> None:
    if not file.is_folder and (change := file.changed()) is not None:
        raise CheckpointError(
            f"{file.source} changed while it was stored: {change}. A checkpoint's files must stay as they are until "
            "report() has returned"
        )
