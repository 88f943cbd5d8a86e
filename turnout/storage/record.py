"""The commit record: the file that makes a folder a checkpoint, and what it says of every other file in it.

It is JSON that anyone can read, ``.turnout.json`` in the checkpoint's folder, and ends in a checksum of itself, so that
a record that was cut short or changed is none. NaN and the infinities stand in it as Python's json spells them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from turnout.checkpoint import METADATA_FILE, Checkpoint, ReportedCheckpoint, ReportedCheckpointStatus
from turnout.failpoints import failpoint, failpoint_data
from turnout.storage.location import StorageLocation
from turnout.storage.parallel import in_threads

__all__ = [
    "RECORD_FILE",
    "CommitRecord",
    "FileEntry",
    "checkpoint_of",
    "has_record_file",
    "read_record",
    "remove_checkpoint",
    "reported",
    "update_record",
    "verify",
    "write_record",
]

RECORD_FILE = ".turnout.json"
_FORMAT = 1
_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint.

    Args:
        path: within the checkpoint's folder, with ``/``; an empty folder ends in one.
        size: bytes.
        checksum: xxh3_64 in hexadecimal; None where Turnout did not see the bytes pass.
        rank: the world rank that wrote it.
    """

    path: str
    size: int
    checksum: str | None
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """What is known of a committed checkpoint.

    Args:
        name: its folder's name; not stored, as the folder says it.
        run: the run's name.
        index: how many checkpoints the run had committed or tried before it.
        attempt: that wrote it.
        time: when, in seconds since the epoch.
        world_size: how many ranks met.
        metrics: rank 0's, with those of its validation merged in.
        status: how far its validation has come.
        files: all of them, by path.
        extra: whatever else the caller wants to find again.
    """

    name: str
    run: str
    index: int
    attempt: int
    time: float
    world_size: int
    metrics: dict[str, Any]  # Any: a metric is whatever JSON can hold
    status: ReportedCheckpointStatus = ReportedCheckpointStatus.COMMITTED
    files: tuple[FileEntry, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)  # Any: whatever JSON can hold

    @property
    def position(self) -> tuple[int, int]:
        """What checkpoints of a run are ordered by."""
        return self.attempt, self.index

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(entry.size for entry in self.files)


def to_bytes(record: CommitRecord) -> bytes:
    """The record as it is stored."""
    body = asdict(record)
    del body["name"]
    body["status"] = record.status.value
    body["files"] = [[entry.path, entry.size, entry.checksum, entry.rank] for entry in record.files]
    body = {"turnout_commit": _FORMAT, **body}
    text = json.dumps(body)
    return f'{text[:-1]}, "seal": "{_seal(text)}"}}\n'.encode()


def from_bytes(data: bytes, name: str) -> CommitRecord | None:
    """The record of the folder ``name``, or None if ``data`` is no whole record."""
    try:
        body = json.loads(data)
        seal = body.pop("seal")
        if body["turnout_commit"] != _FORMAT or seal != _seal(json.dumps(body)):
            return None
        del body["turnout_commit"]
        body["status"] = ReportedCheckpointStatus(body["status"])
        body["files"] = tuple(FileEntry(*entry) for entry in body["files"])
        return CommitRecord(name=name, **body)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def read_record(folder: StorageLocation) -> CommitRecord | None:
    """The record of a checkpoint's folder; None if there is none, or none that is whole.

    Raises:
        StorageError: it may be there, but the storage does not say.
    """
    data = (folder / RECORD_FILE).read()
    return None if data is None else from_bytes(data, folder.name)


def has_record_file(folder: StorageLocation) -> bool:
    """Whether a record is there at all, be it whole or not."""
    return (folder / RECORD_FILE).exists()


def write_record(folder: StorageLocation, record: CommitRecord) -> None:
    """THE COMMIT: the folder is a checkpoint once this has returned, and is none before it began.

    All files must be on the disk by now; this flushes the folder with their names along with the record.
    """
    failpoint("record.before")
    (folder / RECORD_FILE).put(failpoint_data("record.write", to_bytes(record)))
    failpoint("record.after")


def update_record(
    folder: StorageLocation,
    *,
    metrics: dict[str, Any] | None = None,  # Any: a metric is whatever JSON can hold
    status: ReportedCheckpointStatus | None = None,
) -> CommitRecord | None:
    """Merge the outcome of a validation into the record, whole or not at all.

    Args:
        folder: the checkpoint's.
        metrics: added to those that are there; a key that is there already is replaced.
        status: how far the validation has come.

    Returns:
        The record as it is now; None if the folder is no checkpoint (any more), and so stays none.
    """
    record = read_record(folder)
    if record is None:
        return None
    record = replace(record, metrics={**record.metrics, **(metrics or {})}, status=status or record.status)
    (folder / RECORD_FILE).put(to_bytes(record))
    return record


def remove_checkpoint(folder: StorageLocation) -> None:
    """Remove a checkpoint, its record first: a folder that is half removed is no checkpoint."""
    failpoint("remove.before_record")
    (folder / RECORD_FILE).delete()
    failpoint("remove.after_record")
    folder.delete_tree()
    failpoint("remove.after")


def verify(folder: StorageLocation, level: str, record: CommitRecord | None = None) -> str | None:
    """Why the folder is not the checkpoint that its record says; None if it is.

    ``.metadata.json`` may change after the commit and is looked at by nobody; files that Turnout did not see pass have
    no checksum, and are verified by size.

    Args:
        folder: the checkpoint's.
        level: ``"full"`` reads every file and compares checksums; ``"size"`` compares sizes.
        record: if it has been read already.
    """
    record = record or read_record(folder)
    if record is None:
        return f"{folder / RECORD_FILE} is missing or cut short"
    entries = [entry for entry in record.files if entry.path != METADATA_FILE]
    if folder.is_local:
        sizes: dict[str, int] | None = None
    else:
        sizes = {e.path + "/" * e.is_folder: e.size for e in folder.listing(recursive=True)}
    if level == "size" and folder.is_local:
        return next(filter(None, (_difference(folder, entry, level, sizes) for entry in entries)), None)
    found = in_threads(
        lambda entry: _difference(folder, entry, level, sizes), entries, num_threads=4, name="turnout-verify"
    )
    return next(filter(None, found), None)


def checkpoint_of(folder: StorageLocation) -> Checkpoint:
    """The handle to a checkpoint's folder."""
    return Checkpoint(folder.path, folder.filesystem)


def reported(folder: StorageLocation, record: CommitRecord) -> ReportedCheckpoint:
    """What `get_all_reported_checkpoints` shows of it."""
    return ReportedCheckpoint(checkpoint_of(folder), dict(record.metrics), record.status)


def checksum_of(chunks: Iterable[bytes | memoryview]) -> str:
    """The checksum of a file, as records hold it."""
    import xxhash

    hasher = xxhash.xxh3_64()
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.hexdigest()


def _difference(folder: StorageLocation, entry: FileEntry, level: str, sizes: dict[str, int] | None) -> str | None:
    place = folder / entry.path.rstrip("/")
    if entry.path.endswith("/"):
        # An object store need not keep a folder that is empty.
        return f"the folder {place} is missing" if folder.is_local and not os.path.isdir(place.path) else None
    size = place.size() if sizes is None else sizes.get(entry.path)
    if size is None:
        return f"{place} is missing"
    if size != entry.size:
        return f"{place} holds {size} bytes, and held {entry.size} when it was committed"
    if level == "full" and entry.checksum is not None:
        found = place._do("read", lambda: _checksum_at(place))
        if found != entry.checksum:
            return f"{place} has changed since it was committed: its checksum is {found}, and was {entry.checksum}"
    return None


def _checksum_at(place: StorageLocation) -> str:
    with place.open_input() as stream:
        return checksum_of(iter(lambda: stream.read(_CHUNK), b""))


def _seal(text: str) -> str:
    return checksum_of([text.encode()])
