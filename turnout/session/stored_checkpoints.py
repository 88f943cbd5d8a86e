"""`StoredCheckpoints`: the part of a session that commits what is reported to the run's folder."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

from turnout.checkpoint import Checkpoint, ReportedCheckpoint, ReportedCheckpointStatus
from turnout.checks import refused
from turnout.config import (
    CheckpointConfig,
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    ValidationConfig,
    ValidationTaskConfig,
)
from turnout.errors import StorageError, UsageError
from turnout.failpoints import failpoint
from turnout.session.checkpoints import CheckpointReport
from turnout.session.collective import Collective
from turnout.session.events import Committed, Saved
from turnout.session.outbox import Outbox
from turnout.session.run_storage import RunStorage
from turnout.session.task_queue import TaskQueue
from turnout.session.validation import remembered_task, task_of, validate
from turnout.storage import (
    CommitRequest,
    RunFolder,
    checkpoint_name,
    checkpoint_of,
    commit,
    committed,
    reported,
    stage,
)

__all__ = ["UPLOAD", "StoredCheckpoints", "StoredPlan"]

logger = logging.getLogger(__name__)

UPLOAD = "upload"
"""The kind of tasks that commit in the background; see `TaskQueue`."""
_PENDING = ReportedCheckpointStatus.PENDING_VALIDATION


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """What a worker is told of its run's folder for one attempt; calling it makes the session's part.

    Args:
        run: the folder.
        attempt: the attempt's number.
        next_index: of the next checkpoint, the same on every rank.
        resume_from: the checkpoint that the attempt goes on from.
        config: which checkpoints are kept, and how many may be under way.
        validation_config: what validates a checkpoint; None if the trainer was given none.
        validates_here: whether this worker runs it in line; else the driver has it run elsewhere.
        marks_names: add the attempt to names that users give, while a run that this one replaces still has its own.
        uploads: the queue for background commits, where worker and driver share a process and so a thread.
    """

    run: RunFolder
    attempt: int
    next_index: int
    resume_from: Checkpoint | None
    config: CheckpointConfig
    validation_config: ValidationConfig | None
    validates_here: bool
    marks_names: bool = False
    uploads: TaskQueue | None = None

    def __call__(self, collective: Collective, outbox: Outbox) -> StoredCheckpoints:
        """Make the part that keeps this worker's checkpoints."""
        return StoredCheckpoints(self, collective, outbox)


class StoredCheckpoints:
    """Commits reported checkpoints, at once or in the background, in the order in which they were reported.

    Args:
        plan: of the attempt.
        collective: where the ranks meet for a commit.
        outbox: takes word of background commits.
    """

    def __init__(self, plan: StoredPlan, collective: Collective, outbox: Outbox) -> None:
        self._plan = plan
        self._collective = collective
        self._outbox = outbox
        self._uploads = plan.uploads or TaskQueue("turnout-uploads")
        self._owns_uploads = plan.uploads is None
        self._index = plan.next_index
        self._latest = plan.resume_from
        self._names: set[str] = set()
        self._pid = os.getpid()
        self._is_saving = False  # one thread at a time comes here, so whoever finds it set came from within

    def save(self, report: CheckpointReport) -> Saved:
        """Commit the report's checkpoint, or take its files and commit them in the background.

        Raises:
            UsageError: the arguments do not go together, or the name is taken.
            CheckpointError: the files cannot be stored, or the attempt has been superseded.
            StorageError: the storage refused, failed or is full; also for an earlier report's background commit.
        """
        if self._is_saving or self._uploads.is_current_thread():
            raise UsageError(
                "report(): a checkpoint is reported inside of the report of another, by checkpoint_upload_fn or by a "
                "signal handler; report it afterwards"
            )
        self._is_saving = True
        try:
            with self._naming_who_superseded():
                return self._save(report)
        finally:
            self._is_saving = False

    def latest(self) -> Checkpoint | None:
        """The newest that is committed, or what the attempt goes on from."""
        return self._latest

    def reported(
        self, consistency_mode: CheckpointConsistencyMode, timeout_s: float | None
    ) -> list[ReportedCheckpoint]:
        """All that are committed, oldest first; what is under way is waited for first."""
        if os.getpid() == self._pid:  # a forked copy of the worker has no uploads under way
            self._uploads.drain(UPLOAD, timeout_s)
        run = self._plan.run
        return [reported(run.checkpoints / record.name, record) for record in committed(run)]

    def storage(self) -> RunStorage:
        """The run's storage."""
        return RunStorage(self._plan.run)

    def finish(self, failure: BaseException | None) -> None:
        """Wait for background commits.

        Args:
            failure: what the train function raised; waiting is then bounded by `CheckpointConfig.drain_timeout_s`.

        Raises:
            CheckpointError, StorageError: a background commit failed, and the train function did not.
        """
        if failure is None:
            try:
                self._uploads.drain(UPLOAD)
            except KeyboardInterrupt as interrupt:
                self.finish(interrupt)
                raise
            with self._naming_who_superseded():
                self._raise_earlier_failure()
        else:
            limit = self._plan.config.drain_timeout_s
            if not self._uploads.drain(UPLOAD, limit):
                logger.warning(
                    "a checkpoint was still being uploaded %g s after the train function failed, and is given up "
                    "(CheckpointConfig.drain_timeout_s)",
                    limit,
                )
            while (error := self._uploads.take_failure(UPLOAD)) is not None:
                logger.error("the upload of an ASYNC checkpoint failed too: %s: %s", type(error).__name__, error)
        if self._owns_uploads:
            self._uploads.close(0.0 if failure is not None else None)

    # -- within

    def _save(self, report: CheckpointReport) -> Saved:
        self._raise_earlier_failure()
        validation = self._validation_of(report)
        self._check_mode(report)
        self._check_name(report.dir_name)
        delete = report.delete_local
        if delete is None:
            delete = report.upload_mode.default_delete_local_checkpoint_after_upload()
        request = CommitRequest(
            index=self._index,
            attempt=self._plan.attempt,
            metrics=report.metrics,
            checkpoint=report.checkpoint,
            dir_name=self._name_of(report),
            move=delete,
            in_place=report.upload_mode is CheckpointUploadMode.NO_UPLOAD,
            upload_fn=report.upload_fn,
            status=ReportedCheckpointStatus.COMMITTED if validation is None else _PENDING,
            extra={} if validation is None else remembered_task(validation),
        )
        self._index += 1
        if report.upload_mode is CheckpointUploadMode.ASYNC:
            return self._begin(request, delete, validation)
        self._uploads.drain(UPLOAD)  # commits keep the order of the reports
        self._raise_earlier_failure()
        return self._commit(request, validation)

    def _begin(self, request: CommitRequest, delete: bool, validation: ValidationTaskConfig | None) -> Saved:
        run, source = self._plan.run, request.checkpoint
        assert source is not None
        name = request.dir_name or checkpoint_name(request.index, request.attempt)
        staged = stage(run, source, name=f"{request.attempt}-{request.index}", rank=self._collective.rank, move=delete)
        failpoint("report.after_stage", self._collective.rank)
        if delete and source.is_local:
            shutil.rmtree(source.path, ignore_errors=True)
        later = replace(request, checkpoint=staged, staged=True, move=True)

        def upload() -> None:
            saved = self._commit(later, validation)
            self._outbox.publish(Committed(self._collective.rank, saved))

        if request.dir_name is not None:
            self._names.add(request.dir_name)
        self._uploads.submit(UPLOAD, upload, max_pending=self._plan.config.max_pending_uploads)
        return Saved(checkpoint_of(run.checkpoint_path(name)), is_committed=False, validation=validation)

    def _commit(self, request: CommitRequest, validation: ValidationTaskConfig | None) -> Saved:
        run = self._plan.run
        record = commit(run, self._collective, request)
        assert record is not None, "this rank brought a checkpoint"
        checkpoint = checkpoint_of(run.checkpoints / record.name)
        self._latest = checkpoint
        if request.dir_name is not None:
            self._names.add(request.dir_name)
        if validation is not None and self._plan.validates_here:
            assert self._plan.validation_config is not None, "a validation was asked for"
            record = validate(run, record, self._plan.validation_config)
        return Saved(checkpoint, is_committed=True, record=record, validation=validation)

    def _name_of(self, report: CheckpointReport) -> str | None:
        is_first = self._plan.marks_names and self._index == self._plan.next_index
        return f"{report.dir_name}-a{self._plan.attempt}" if is_first and report.dir_name else report.dir_name

    def _validation_of(self, report: CheckpointReport) -> ValidationTaskConfig | None:
        if report.validation is False:
            return None
        if self._plan.validation_config is None:
            raise refused(
                "report(): validation", report.validation, "needs a trainer with validation_config=ValidationConfig(fn)"
            )
        return task_of(self._plan.validation_config, report.validation)

    @staticmethod
    def _check_mode(report: CheckpointReport) -> None:
        if report.upload_mode is not CheckpointUploadMode.NO_UPLOAD:
            return
        if report.upload_fn is not None:
            raise UsageError("report(): checkpoint_upload_fn has nothing to upload with NO_UPLOAD; drop one of the two")
        if report.delete_local:
            raise UsageError(
                "report(): with NO_UPLOAD the files are the checkpoint; delete_local_checkpoint_after_upload=True "
                "would remove it"
            )

    def _check_name(self, name: str | None) -> None:
        """Refuse a name twice, also where retention has removed the first: it may be at that right now."""
        if name is not None and name in self._names:
            raise UsageError(
                f"report(): checkpoint_dir_name={name!r} was given already in this run; give each checkpoint a name of "
                "its own, or leave the naming to Turnout"
            )

    @contextlib.contextmanager
    def _naming_who_superseded(self) -> Iterator[None]:
        """A newer attempt removes what this one writes, which shows as errors of many kinds: tell what is behind them.

        Raises:
            CheckpointError: in place of the error, if the attempt has been superseded.
        """
        try:
            yield
        except Exception:
            with contextlib.suppress(StorageError):
                self._plan.run.require_current(self._plan.attempt)
            raise

    def _raise_earlier_failure(self) -> None:
        failure = self._uploads.take_failure(UPLOAD)
        if failure is not None:
            failure.add_note("raised by the upload of an earlier ASYNC report, and told by the next call")
            raise failure
