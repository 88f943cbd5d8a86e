"""The commit: how the folders of many ranks become one checkpoint, or nothing.

1. Every rank scans its folder. Rank 0 makes sure that the checkpoint's name is free.
2. The ranks meet and tell each other their paths and sizes (and checksums of those that several offer); each computes
   which of its files it stores, and where.
3. Every rank stores its files, checksummed as they pass and flushed to disk.
4. The ranks meet, carrying what they stored.
5. Rank 0 makes sure that its attempt has not been superseded, writes the record, and makes sure again: a newer attempt
   first takes its number and then looks for records, so that one of the two sees the other.
6. The ranks meet a last time and are released.

A failure of one rank before the record is carried to the next meeting: all ranks raise, and stay in step. The meetings
are made through any object with a rank, a world size and ``gather``; this module knows nothing of what is behind it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from turnout.checkpoint import Checkpoint, ReportedCheckpointStatus
from turnout.errors import CheckpointError, CheckpointNotFoundError, StorageError, UsageError
from turnout.failpoints import failpoint
from turnout.storage.location import StorageLocation, remove_tree
from turnout.storage.record import RECORD_FILE, CommitRecord, FileEntry, read_record, remove_checkpoint, write_record
from turnout.storage.run_folder import RunFolder, checkpoint_name
from turnout.storage.sources import Assignment, Offer, SourceFile, assign, contested, scan
from turnout.storage.upload import checksums, take, upload

__all__ = ["FAILPOINTS", "CommitRequest", "Meeting", "check_source", "commit", "stage"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

FAILPOINTS = (
    "commit.before_scan",
    "commit.after_scan",
    "commit.after_offer",
    "upload.file",
    "upload.chunk",
    "commit.after_upload",
    "commit.after_meeting",
    "commit.before_record",
    "record.before",
    "put.before",
    "put.before_rename",
    "put.after",
    "record.after",
    "commit.after_record",
    "commit.after_release",
)
"""The points of the protocol at which a test may strike, in the order in which a commit passes them."""


class Meeting(Protocol):
    """Where all ranks meet; `turnout.session.collective.Collective` is one."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def world_size(self) -> int:
        """How many ranks meet."""

    def gather(self, tag: str, value: Any) -> list[Any]:  # Any: whatever the ranks pass each other
        """Return every rank's value, by rank, on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """What one rank wants committed; index, attempt and mode are the same on all ranks.

    Args:
        index: of the checkpoint in the run.
        attempt: the caller's.
        metrics: in types that JSON can hold; rank 0's are recorded.
        checkpoint: this rank's; None if it has none.
        dir_name: the folder's name; None for one made of index and attempt.
        move: take the files by hard link where source and storage share a filesystem, and remove the source once they
            are committed. Without it they are copied.
        staged: ``checkpoint`` is what `stage` made, in the run's own folder maybe.
        in_place: the files are in the run's folder already, and stay where they are.
        upload_fn: stores this rank's files in Turnout's place.
        status: that the record begins with.
        extra: whatever else the record should hold; rank 0's is taken.
    """

    index: int
    attempt: int
    metrics: dict[str, Any]  # Any: a metric is whatever JSON can hold
    checkpoint: Checkpoint | None
    dir_name: str | None = None
    move: bool = False
    staged: bool = False
    in_place: bool = False
    upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None
    status: ReportedCheckpointStatus = ReportedCheckpointStatus.COMMITTED
    extra: dict[str, Any] = field(default_factory=dict)  # Any: whatever JSON can hold

    @property
    def counts_as_written_by_others(self) -> bool:
        """Whether Turnout does not see the bytes, and so records no checksums."""
        return self.in_place or self.upload_fn is not None


def commit(run: RunFolder, meeting: Meeting, request: CommitRequest) -> CommitRecord | None:
    """Make the ranks' folders one checkpoint; called by every rank, whether it has files or not.

    Returns:
        The record, on every rank, once it is on the disk; None if no rank passed a checkpoint.

    Raises:
        UsageError: the name is taken or differs between ranks, or the folder cannot be meant.
        CheckpointError: a source cannot be stored or changed, another rank failed, or the attempt was superseded.
        StorageError: the storage refused, failed or is full. What was written of this checkpoint is removed as far as
            possible; nothing that was committed is touched.
    """
    return _Commit(run, meeting, request).run()


def check_source(run: RunFolder, checkpoint: Checkpoint, *, in_place: bool) -> None:
    """Refuse a folder that cannot be meant, before anything is copied.

    Args:
        run: the run that it is reported in.
        checkpoint: as the user passed it.
        in_place: whether its files are said to be in the run's folder already.

    Raises:
        UsageError: it is the run's own folder, inside it or around it; or, with ``in_place``, is not one under
            ``checkpoints``.
    """
    given = StorageLocation(checkpoint.path, None if checkpoint.is_local else checkpoint.filesystem)
    same_place = given.filesystem == run.location.filesystem
    path, root = _real(given), _real(run.location)
    if in_place:
        if not same_place or os.path.dirname(path) != _real(run.checkpoints):
            raise UsageError(
                f"report(): with NO_UPLOAD the checkpoint {given} must be a folder directly under {run.checkpoints}; "
                "write it to get_context().get_storage().checkpoint_path(name)"
            )
        run.checkpoint_path(given.name)
    elif same_place and (path == root or path.startswith(f"{root}/") or root.startswith(f"{path.rstrip('/')}/")):
        relation = "the run's own folder" if path == root else "inside" if path.startswith(root) else "around"
        relation = relation if path == root else f"{relation} the run's own folder"
        raise UsageError(
            f"report(): the checkpoint {given} is {relation} {run.location}. Write it to a temporary folder, or, for "
            "files that are in the run's folder already, pass checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD"
        )


def stage(run: RunFolder, checkpoint: Checkpoint, *, name: str, rank: int, move: bool) -> Checkpoint:
    """Take this rank's files aside, for a commit that comes later; the caller may then remove its folder.

    Args:
        run: the run.
        checkpoint: as the user passed it; not changed, and the caller's to remove.
        name: tells this checkpoint from others that are under way.
        rank: the caller's.
        move: take them by hard link where they share a filesystem: they must not be written to any more. Else they
            are cloned or copied.

    Returns:
        The handle to pass to `commit` with ``staged=True, move=True``, which removes the staging folder in the end.
    """
    check_source(run, checkpoint, in_place=False)
    if run.location.is_local:
        run.checkpoints.make_folder()
        folder = f"{run.checkpoints.path}/.staging-{name}-rank{rank}"
        remove_tree(folder)
    else:
        folder = tempfile.mkdtemp(prefix="turnout-staging-")
    try:
        with checkpoint.as_directory() as source:
            take(scan(source), folder, link=move)
    except BaseException:
        remove_tree(folder)
        raise
    return Checkpoint(folder)


class _Commit:
    """One rank's part in one commit."""

    def __init__(self, run: RunFolder, meeting: Meeting, request: CommitRequest) -> None:
        self.meeting = meeting
        self.request = request
        self.run_folder = run
        self.name = ""
        self.failure: Exception | None = None
        self.may_clean = False

    def run(self) -> CommitRecord | None:
        with contextlib.ExitStack() as sources:
            failpoint("commit.before_scan", self.meeting.rank)
            offered = self._attempted(lambda: self._offer(sources))
            failpoint("commit.after_scan", self.meeting.rank)
            files, told = offered if offered is not None else ([], None)
            told_by = self._meet("offer", told)
            self._agree_on_name(told_by)
            if all(each["paths"] is None for each in told_by):
                return None
            failpoint("commit.after_offer", self.meeting.rank)
            targets = self._targets(files, [each["paths"] for each in told_by])
            entries = self._attempted(lambda: self._store(files, targets))
        failpoint("commit.after_upload", self.meeting.rank)
        written_by = self._meet("stored", entries)
        failpoint("commit.after_meeting", self.meeting.rank)
        record = self._attempted(lambda: self._record(written_by, told_by)) if self.meeting.rank == 0 else None
        committed: CommitRecord = self._meet("committed", record)[0]
        failpoint("commit.after_release", self.meeting.rank)
        if self.request.move and self.request.checkpoint is not None and self.request.checkpoint.is_local:
            remove_tree(self.request.checkpoint.path)
        return committed

    # -- meeting

    def _attempted(self, step: Callable[[], T]) -> T | None:
        """Do this rank's part; what it raises is kept for the next meeting, so that no rank waits for this one."""
        try:
            return step()
        except Exception as error:  # the edge between ranks: a user's upload function may raise anything
            self.failure = error
            return None

    def _meet(self, tag: str, value: Any) -> list[Any]:  # Any: whatever this step tells the others
        failed = None if self.failure is None else f"{type(self.failure).__name__}: {self.failure}"
        met = self.meeting.gather(f"checkpoint {self.request.index}: {tag}", (failed, value))
        failures = {rank: text for rank, (text, _) in enumerate(met) if text is not None}
        if failures:
            self._clean()
            if self.failure is not None:
                raise self.failure
            told = "; ".join(f"rank {rank}: {text}" for rank, text in failures.items())
            raise CheckpointError(f"checkpoint {self.name or self.request.index} was not committed: {told}")
        return [value for _, value in met]

    def _clean(self) -> None:
        """Remove what this commit has written. The ranks are past storing; one that comes late fails for its folder."""
        if self.meeting.rank == 0 and self.may_clean:
            try:
                if self.run_folder.current_attempt() == self.request.attempt:  # else another may have used the name
                    remove_checkpoint(self.run_folder.checkpoints / self.name)
            except StorageError as error:
                logger.warning("the next attempt has to remove what is left of checkpoint %s: %s", self.name, error)

    # -- steps 1 and 2

    def _offer(self, sources: contextlib.ExitStack) -> tuple[list[SourceFile], dict[str, Any]]:
        request, checkpoint = self.request, self.request.checkpoint
        name = request.dir_name
        files: list[SourceFile] = []
        if checkpoint is not None:
            if not request.staged:
                check_source(self.run_folder, checkpoint, in_place=request.in_place)
            if request.in_place:
                name = StorageLocation(checkpoint.path).name
                if request.dir_name not in (None, name):
                    raise UsageError(
                        f"report(): checkpoint_dir_name={request.dir_name!r}, but the folder in place is {name!r}"
                    )
                checkpoint._require()
            elif request.upload_fn is None:
                files = scan(sources.enter_context(checkpoint.as_directory()))
        if self.meeting.rank == 0:
            self.name = name or checkpoint_name(request.index, request.attempt)
            self._make_way()
        paths = None if checkpoint is None else [(file.path, file.size) for file in files]
        by_others = checkpoint is not None and request.counts_as_written_by_others
        return files, {"name": name, "paths": paths, "by_others": by_others}

    def _make_way(self) -> None:
        """Rank 0, before any rank writes: the name is free, or taken by what was never finished."""
        run, folder = self.run_folder, self.run_folder.checkpoint_path(self.name)
        run.require_current(self.request.attempt)
        if (record := read_record(folder)) is not None:
            raise UsageError(
                f"report(): the run has a checkpoint {self.name!r} already, of attempt {record.attempt}; give each a "
                "checkpoint_dir_name of its own, or leave the naming to Turnout"
            )
        self.may_clean = not self.request.in_place
        if self.may_clean and folder.is_folder():
            folder.delete_tree()

    def _agree_on_name(self, told_by: Sequence[Mapping[str, Any]]) -> None:
        """All ranks come to the same: rank 0's name, or, for files in place, that of whoever has them."""
        given = {rank: each["name"] for rank, each in enumerate(told_by) if each["name"] is not None}
        default = checkpoint_name(self.request.index, self.request.attempt)
        in_place = next(iter(given.values()), default) if self.request.in_place else default
        name = given.get(0, in_place)
        wrong = {rank: other for rank, other in given.items() if other != name}
        if wrong:
            self._clean()
            told = ", ".join(f"rank {rank}: {other!r}" for rank, other in wrong.items())
            raise UsageError(
                f"report(): the ranks name checkpoint {self.request.index} differently: rank 0: {name!r}, {told}. "
                "Give the same checkpoint_dir_name on every rank, or on rank 0 alone"
            )
        self.name = name

    def _targets(self, files: Sequence[SourceFile], offers: Sequence[Offer | None]) -> dict[str, str]:
        if self.request.counts_as_written_by_others:
            return {}
        doubtful = contested(offers)
        found: Sequence[Mapping[str, str]] = [{}] * self.meeting.world_size
        if doubtful:
            mine = self._attempted(lambda: checksums(file for file in files if file.path in doubtful))
            found = self._meet("checksums", mine)
        assignments = assign(offers, found)
        if self.meeting.rank == 0:
            self._warn_of_moved(assignments)
        return assignments[self.meeting.rank].targets

    def _warn_of_moved(self, assignments: Sequence[Assignment]) -> None:
        moved = [(rank, path) for rank, each in enumerate(assignments) for path in each.moved]
        if moved:
            shown = ", ".join(f"{path} of rank {rank}" for rank, path in moved[:5])
            logger.warning(
                "checkpoint %s: %d file(s) differ from another rank's of the same name and are stored under "
                "rank_<n>/: %s%s",
                self.name,
                len(moved),
                shown,
                ", ..." if len(moved) > 5 else "",
            )

    # -- steps 3 to 5

    def _store(self, files: Sequence[SourceFile], targets: Mapping[str, str]) -> list[FileEntry]:
        request, checkpoint = self.request, self.request.checkpoint
        folder = self.run_folder.checkpoint_path(self.name)
        if checkpoint is None or request.in_place:
            return []
        if request.upload_fn is None:
            return upload(files, targets, folder, rank=self.meeting.rank, move=request.move)
        stored = request.upload_fn(checkpoint, self.name)
        if not isinstance(stored, Checkpoint) or stored != Checkpoint(folder.path, folder.filesystem):
            raise UsageError(
                f"checkpoint_upload_fn returned {stored!r}; it must store the files in {folder} and return a handle to "
                "that folder: Checkpoint(storage.checkpoint_path(dir_name))"
            )
        return []

    def _record(self, written_by: Sequence[list[FileEntry]], told_by: Sequence[Mapping[str, Any]]) -> CommitRecord:
        run, request = self.run_folder, self.request
        folder = run.checkpoint_path(self.name)
        entries = [entry for entries in written_by for entry in entries]
        by_others = [rank for rank, each in enumerate(told_by) if each["by_others"]]
        if by_others:
            if request.in_place and read_record(folder) is not None:
                self.may_clean = False
                raise UsageError(f"report(): {folder} is a committed checkpoint already")
            known = {entry.path for entry in entries}
            entries += [entry for entry in _found(folder, by_others[0]) if entry.path not in known]
        record = CommitRecord(
            name=self.name,
            run=run.name,
            index=request.index,
            attempt=request.attempt,
            time=time.time(),
            world_size=self.meeting.world_size,
            metrics=request.metrics,
            status=request.status,
            files=tuple(sorted(entries, key=lambda entry: entry.path)),
            extra=request.extra,
        )
        failpoint("commit.before_record", self.meeting.rank)
        run.require_current(request.attempt)
        write_record(folder, record)
        failpoint("commit.after_record", self.meeting.rank)
        run.require_current(request.attempt)
        return record


def _found(folder: StorageLocation, rank: int) -> Iterator[FileEntry]:
    """What others wrote: flushed here as far as this machine can, and recorded by size."""
    if not folder.is_folder():
        raise CheckpointNotFoundError(f"{folder}: the checkpoint's folder is not there")
    for entry in folder.listing(recursive=True):
        if entry.path == RECORD_FILE or entry.is_folder:
            continue
        if folder.is_local:
            _flush((folder / entry.path).path)
        yield FileEntry(entry.path, entry.size, None, rank)


def _flush(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _real(location: StorageLocation) -> str:
    return os.path.realpath(location.path) if location.is_local else location.path.strip("/")
