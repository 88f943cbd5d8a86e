"""Where a reported checkpoint goes: the part of `TrainFnUtils` that decides whether it outlives the process."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from turnout.checkpoint import Checkpoint, ReportedCheckpoint
from turnout.config import CheckpointConsistencyMode, CheckpointUploadMode, ValidationTaskConfig
from turnout.errors import CheckpointError, UsageError
from turnout.session.events import Reported, Saved
from turnout.session.run_storage import RunStorage

__all__ = ["CheckpointReport", "Checkpoints", "InMemoryCheckpoints"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """A `report` that carries a checkpoint, on this rank or on another, with its arguments checked.

    Args:
        metrics: in types that JSON can hold.
        checkpoint: what the user passed; None where this rank has none, and another may have one.
        dir_name: the folder's name, if the user gave one.
        upload_mode: when the call returns, and who copies.
        delete_local: whether the caller's folder is removed once it is safe; None leaves it to the mode.
        upload_fn: uploads in place of Turnout.
        validation: whether, and with which arguments, the checkpoint is validated.
        problem: what is wrong with the call's arguments; where a report is a meeting, the others are told before it is
            raised, so that all ranks stay in step.
    """

    metrics: dict[str, Any]  # Any: a metric is whatever JSON can hold
    checkpoint: Checkpoint | None = None
    dir_name: str | None = None
    upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC
    delete_local: bool | None = None
    upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None
    validation: bool | ValidationTaskConfig = False
    problem: Exception | None = None


class Checkpoints(Protocol):
    """Keeps what is reported, and gives back the newest."""

    @property
    def meets(self) -> bool:
        """Whether a report is a meeting of all ranks, so that `save` is called for every one."""

    def save(self, report: CheckpointReport, event: Reported | None = None) -> Saved | None:
        """Keep the checkpoint, or begin to; returns where, or None if no rank has one.

        Args:
            report: this rank's.
            event: where a report is a meeting, it has been published if this returns None.
        """

    def latest(self) -> Checkpoint | None:
        """The newest that is kept, or what the run was told to start from, or None."""

    def reported(
        self, consistency_mode: CheckpointConsistencyMode, timeout_s: float | None
    ) -> list[ReportedCheckpoint]:
        """All that are kept, oldest first."""

    def storage(self) -> RunStorage:
        """The run's storage."""

    def finish(self, failure: BaseException | None) -> None:
        """Wait for what is under way; raise what went wrong with it, unless the train function failed itself."""


class InMemoryCheckpoints:
    """Remembers the last checkpoint of a run without storage; one object serves all attempts of the run.

    The files are copied aside, since the caller's folder is usually a temporary one. A copy is removed once no handle
    to it is left, or when the process ends.

    Args:
        resume_from: what `latest` gives until something is reported.
    """

    meets = False

    def __init__(self, resume_from: Checkpoint | None = None) -> None:
        self._latest = resume_from
        self._names: set[str] = set()
        self._count = 0
        self._warned = False

    def save(self, report: CheckpointReport, event: Reported | None = None) -> Saved:
        """Copy the checkpoint's files aside; a remote one needs no copy, and is remembered as it is.

        Raises:
            UsageError: the run has a checkpoint of that name already.
            CheckpointError: a file cannot be copied; the text names it.
        """
        if report.dir_name is not None and report.dir_name in self._names:
            raise UsageError(
                f"report(): checkpoint_dir_name={report.dir_name!r} was given already in this run; "
                "give each checkpoint a name of its own, or leave the naming to Turnout"
            )
        assert report.checkpoint is not None, "in memory a rank keeps its own"
        self._warn_of_ignored(report)
        name = report.dir_name or f"checkpoint_{self._count:06d}"
        kept = _kept_copy(report.checkpoint, name) if report.checkpoint.is_local else report.checkpoint
        if report.dir_name is not None:
            self._names.add(report.dir_name)
        self._count += 1
        self._latest = kept
        return Saved(kept)

    def latest(self) -> Checkpoint | None:
        """The last one that was reported, or what the run was told to start from, or None."""
        return self._latest

    def reported(
        self, consistency_mode: CheckpointConsistencyMode, timeout_s: float | None
    ) -> list[ReportedCheckpoint]:
        """Nothing: a run in memory tracks no checkpoints."""
        return []

    def storage(self) -> NoReturn:
        """There is none.

        Raises:
            NotImplementedError: always; it says how to get one.
        """
        raise NotImplementedError("this run is in memory and has no storage; pass RunConfig(storage_path=...)")

    def finish(self, failure: BaseException | None) -> None:
        """Nothing is under way."""

    def _warn_of_ignored(self, report: CheckpointReport) -> None:
        ignored = [
            name
            for name, given in (
                ("checkpoint_upload_mode", report.upload_mode is not CheckpointUploadMode.SYNC),
                ("checkpoint_upload_fn", report.upload_fn is not None),
                ("validation", report.validation is not False),
                ("delete_local_checkpoint_after_upload", report.delete_local is not None),
            )
            if given
        ]
        if ignored and not self._warned:
            self._warned = True
            logger.warning(
                "report(): %s: no effect in a run in memory; pass RunConfig(storage_path=...) to keep checkpoints",
                ", ".join(ignored),
            )


class _KeptFolder:
    """Owns a temporary folder: it goes with the last handle that holds on to this, at the latest with the process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._finalizer = weakref.finalize(self, _remove_unless_forked, path, os.getpid())

    def keep_until_exit(self) -> None:
        """Handles are about to leave this process's sight: remove the folder at exit, and not before."""
        if self._finalizer.detach() is not None:
            atexit.register(_remove_unless_forked, self._path, os.getpid())


def _remove_unless_forked(path: str, owner: int) -> None:
    # A child that was forked holds a copy of the owner, whose end must not remove the parent's files.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _kept_copy(checkpoint: Checkpoint, name: str) -> Checkpoint:
    parent = tempfile.mkdtemp(prefix="turnout-in-memory-")
    folder = os.path.join(parent, name)
    try:
        shutil.copytree(checkpoint.path, folder)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(parent, ignore_errors=True)
        raise CheckpointError(f"report(): the checkpoint {checkpoint.path} cannot be copied: {error}") from error
    except BaseException:
        shutil.rmtree(parent, ignore_errors=True)
        raise
    return Checkpoint(folder)._kept_by(_KeptFolder(parent))
