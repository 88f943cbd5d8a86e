"""Reading a run back: which checkpoints count, which one to go on from, and what is left over from a crash."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from turnout.storage.parallel import in_threads
from turnout.storage.record import CommitRecord, has_record_file, read_record, remove_checkpoint, verify
from turnout.storage.run_folder import Attempt, ResumePoint, RunFolder, RunInfo

__all__ = [
    "clean_uncommitted",
    "committed",
    "counting",
    "newest_verified",
    "remove_superseded",
    "set_aside",
]

logger = logging.getLogger(__name__)

_REMOTE_THREADS = 8


def committed(run: RunFolder) -> list[CommitRecord]:
    """The run's checkpoints, oldest first.

    A commit of an older attempt beyond the point that a newer one resumed from is left out: it was written by an
    attempt that had been given up.
    """
    info = run.info()
    return counting(_all_records(run), info.attempts if info else ())


def counting(records: Iterable[CommitRecord], attempts: Iterable[Attempt]) -> list[CommitRecord]:
    """Those of ``records`` that no attempt has left behind, oldest first."""
    points = [(each.number, each.resumed_from) for each in attempts if each.resumed_from is not None]
    kept = [
        record
        for record in records
        if all(number <= record.attempt or _is_within(record, point) for number, point in points)
    ]
    return sorted(kept, key=lambda record: record.position)


def newest_verified(
    run: RunFolder, level: str, *, set_bad_aside: bool = True, skip: Collection[str] = ()
) -> CommitRecord | None:
    """The newest checkpoint that is what its record says; those that are not are skipped with a warning.

    Called by the driver that holds the lease, after `RunFolder.begin_attempt`.

    Args:
        run: the run.
        level: ``"full"`` by checksums, ``"size"`` by sizes.
        set_bad_aside: rename those that fail to ``<folder>.bad``, so that they are not tried again.
        skip: names that are known to be of no use.
    """
    for record in reversed(committed(run)):
        if record.name in skip:
            continue
        reason = verify(run.checkpoints / record.name, level, record)
        if reason is None:
            return record
        logger.warning("checkpoint %s is damaged and skipped, the one before is tried: %s", record.name, reason)
        if set_bad_aside:
            set_aside(run, record.name)
    return None


def set_aside(run: RunFolder, name: str) -> str:
    """Rename a checkpoint's folder to ``<name>.bad`` (or ``.bad.1`` and so on); returns the new name."""
    taken = {entry.path for entry in run.checkpoints.listing()}
    target = f"{name}.bad"
    number = 0
    while target in taken:
        number += 1
        target = f"{name}.bad.{number}"
    (run.checkpoints / name).rename(run.checkpoints / target)
    return target


def clean_uncommitted(run: RunFolder) -> list[str]:
    """Remove what a crash has left: folders that were never committed, and those half removed by retention.

    Called by the driver that holds the lease, after `RunFolder.begin_attempt` and before any worker starts. A folder
    whose record is there but damaged was committed once; it is set aside, not removed.

    Returns:
        The names of the folders.
    """
    cleaned = []
    for entry in run.location.listing():
        if entry.path.startswith(".") and entry.path.endswith(".partial"):
            (run.location / entry.path).delete()
    names = run.folder_names()
    for entry in run.checkpoints.listing():
        if not entry.is_folder:
            continue
        folder = run.checkpoints / entry.path
        is_staging = entry.path.startswith(".staging-")
        if not is_staging and (entry.path not in names or read_record(folder) is not None):
            continue
        if not is_staging and has_record_file(folder):
            logger.warning(
                "%s is cut short or damaged: the checkpoint is skipped, and set aside as %s",
                folder / ".turnout.json",
                set_aside(run, entry.path),
            )
        else:
            folder.delete_tree()
        cleaned.append(entry.path)
    if cleaned:
        logger.info("run %r: cleaned up after a crash: %s", run.name, ", ".join(cleaned))
    return cleaned


def remove_superseded(run: RunFolder) -> list[str]:
    """Remove the commits that count no more: what ``on_existing="overwrite"`` does after its own first commit."""
    info = run.info()
    records = _all_records(run)
    kept = {record.name for record in counting(records, info.attempts if info else ())}
    removed = [record.name for record in records if record.name not in kept]
    for name in removed:
        remove_checkpoint(run.checkpoints / name)
    return removed


def resume_point(record: CommitRecord | None) -> ResumePoint:
    """What to tell `RunFolder.set_resume_point` of an attempt that goes on from ``record``, or from nothing."""
    return (
        ResumePoint() if record is None else ResumePoint(name=record.name, attempt=record.attempt, index=record.index)
    )


def next_index(records: Iterable[CommitRecord], info: RunInfo | None) -> int:
    """The index of the next checkpoint: one more than the highest that counts."""
    point = info.attempts[-1].resumed_from if info is not None and info.attempts else None
    return max([record.index for record in records] + [point.index if point else -1], default=-1) + 1


def _is_within(record: CommitRecord, point: ResumePoint) -> bool:
    return record.position <= (point.attempt, point.index)


def _all_records(run: RunFolder) -> list[CommitRecord]:
    names = run.folder_names()
    if run.location.is_local or len(names) < 2:
        found = [read_record(run.checkpoints / name) for name in names]
    else:
        found = in_threads(
            lambda name: read_record(run.checkpoints / name), names, num_threads=_REMOTE_THREADS, name="turnout-read"
        )
    return [record for record in found if record is not None]
