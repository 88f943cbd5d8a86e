"""`StorageKeeper`: keeps a run in its folder, for one driver at a time, so that it outlives every process of it."""

from __future__ import annotations

import contextlib
import logging
import os
from types import TracebackType
from typing import Any, Self

from turnout.checkpoint import Checkpoint, ReportedCheckpointStatus
from turnout.combined_error import text_of
from turnout.config import CheckpointConfig
from turnout.controllers.base import Controller, RunSpec
from turnout.errors import CheckpointError, ControllerError, StorageError, UsageError, WorkerGroupError
from turnout.runtime.keeping import AttemptPlan, Kept
from turnout.runtime.validations import LOG, Validations
from turnout.session.events import Saved
from turnout.session.stored_checkpoints import UPLOAD, StoredPlan
from turnout.session.task_queue import TaskQueue
from turnout.session.validation import validate
from turnout.storage.history import MetricsHistory, last_metrics
from turnout.storage.lease import Lease
from turnout.storage.location import StorageLocation
from turnout.storage.logs import RunLogs
from turnout.storage.reading import (
    clean_uncommitted,
    committed,
    newest_verified,
    next_index,
    remove_superseded,
    resume_point,
)
from turnout.storage.record import CommitRecord, checkpoint_of, update_record
from turnout.storage.retention import Retention, best_first
from turnout.storage.run_folder import ResumePoint, RunFolder

__all__ = ["StorageKeeper"]

logger = logging.getLogger(__name__)

_RETENTION = "retention"
_LOGS = "logs"
_PENDING = ReportedCheckpointStatus.PENDING_VALIDATION


class StorageKeeper:
    """Holds a run's lease, begins its attempts, and keeps what they report.

    It owns two threads: one renews the lease and writes the history about once a second, one commits ASYNC checkpoints
    and removes those that need not be kept; and a third, where checkpoints are validated beside training.

    Args:
        spec: the run; its storage path is set.
        controller: is told to end the attempt should the lease be lost.

    Raises:
        StorageError: no filesystem is known for the storage path.
    """

    def __init__(self, spec: RunSpec, controller: Controller) -> None:
        self._spec = spec
        self._controller = controller
        self._config = spec.run_config.checkpoint_config or CheckpointConfig()
        assert spec.run_config.storage_path is not None, "a run without a storage path is kept in memory"
        self._location = StorageLocation.open(spec.run_config.storage_path, spec.run_config.storage_filesystem)
        self._run = RunFolder(self._location, spec.name)
        self._lease = Lease(self._run)
        self._tasks = TaskQueue("turnout-uploads")
        self._cleanup = contextlib.ExitStack()
        self._history = MetricsHistory(self._run, has_flusher=True)
        self._logs = RunLogs(self._run)
        self._retention = Retention(self._run, self._config)
        self._validations = self._make_validations()
        self._validated_now: dict[str, CommitRecord] = {}
        """What retention has not been told of yet, by name."""
        self._attempt = -1
        self._num_reports = 0
        self._metrics: dict[str, Any] | None = None
        self._newest: Checkpoint | None = None
        self._resumed_from: str | None = None
        self._replaces = False
        """Whether this run replaces an older one, which stands until this one's first commit."""
        self._was_verified = False
        self._lost: StorageError | None = None
        self._kept: Kept | None = None

    def __enter__(self) -> Self:
        """Take the run.

        Raises:
            StorageError: the storage cannot be written to.
            UsageError: another driver has the run, or it exists and ``on_existing="error"``.
        """
        self._location.check_writable()
        with contextlib.ExitStack() as cleanup:
            existed = self._run.exists()
            self._lease.acquire()
            cleanup.callback(self._release)
            self._open(existed)
            cleanup.enter_context(self._lease.kept(on_lost=self._on_lost, meanwhile=self._flush))
            cleanup.callback(self._logs.close)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish background work, seal the history, say how the run ended, and let go of it."""
        with self._cleanup:
            try:
                self._finish_validations(error)
            finally:
                self._finish(error)

    def begin_attempt(self, cause: str) -> AttemptPlan:
        """Take the next number, and find what to go on from."""
        run = self._run
        # What the attempt before has left to remove must not meet what this one writes.
        if not self._tasks.drain(timeout_s=self._config.drain_timeout_s):
            logger.warning("run %r: an upload of the attempt before hangs, and is left behind", run.name)
            self._tasks.close(0.0)
            self._tasks = TaskQueue("turnout-uploads")
        self._attempt = run.begin_attempt(cause)
        self._logs.begin_attempt(self._attempt)
        self._num_reports = 0
        clean_uncommitted(run)
        records: list[CommitRecord] = []
        index, resumed = 0, None
        if not self._replaces:
            resumed = newest_verified(run, self._verify_level())
            run.set_resume_point(resume_point(resumed))
            records = committed(run)
            if len(records) < len(run.folder_names()):
                remove_superseded(run)  # what a run that replaced another could not remove before it was killed
            index = next_index(records, run.info())
        self._retention = Retention(run, self._config, self._validated(records))
        self._resumed_from = None if resumed is None else resumed.name
        self._newest = None if resumed is None else checkpoint_of(run.checkpoints / resumed.name)
        if self._newest is not None:
            logger.info("run %r goes on from %s, in attempt %d", run.name, self._newest.path, self._attempt)
        plan = StoredPlan(
            run=run,
            attempt=self._attempt,
            next_index=index,
            resume_from=self.newest(),
            config=self._config,
            validation_config=self._spec.validation_config,
            validates_here=self._validations is None,
            uploads=None if self._controller.traits.isolates_workers else self._tasks,
            marks_names=self._replaces,
        )
        return AttemptPlan(number=self._attempt, checkpoints=plan)

    def on_report(self, metrics: list[dict[str, Any]], saved: Saved | None) -> None:
        """Add it to the history, and its checkpoint to those that are kept."""
        name = None if saved is None else os.path.basename(saved.checkpoint.path)
        append, number, attempt = self._history.append, self._num_reports, self._attempt
        for rank, each in enumerate(metrics):
            append(number, rank, attempt, each, name)
        self._num_reports = number + 1
        self._metrics = metrics[0]
        if saved is not None and saved.is_committed:
            self.on_commit(saved)

    def on_commit(self, saved: Saved) -> None:
        """Remember the newest, and have those removed that need not be kept."""
        self._newest = saved.checkpoint
        if self._replaces:
            self._run.require_current(self._attempt)  # else it would be another's run that is removed
            self._replaces = False
            self._run.set_resume_point(ResumePoint())
            # At once and not in the background: the next commit may have the name of one that is removed.
            removed = remove_superseded(self._run)
            logger.info("run %r replaces an older one: %d checkpoints are removed", self._run.name, len(removed))
        record, retention, attempt = saved.record, self._retention, self._attempt
        if record is not None and record.status is _PENDING and self._validations is not None:
            self._validations.submit(record)
        if record is not None and self._config.num_to_keep is not None:
            self._tasks.submit(_RETENTION, lambda: self._retain(retention, attempt, record))

    def on_log(self, rank: int, data: bytes) -> None:
        """Add it to the rank's log."""
        self._logs.add(f"rank_{rank}", data)

    def require_current(self, attempt: int) -> None:
        """Refuse to go on with a run that another driver has taken.

        Raises:
            ControllerError: one has.
        """
        if self._lost is not None:
            raise ControllerError(str(self._lost)) from self._lost
        try:
            self._run.require_current(attempt)
        except CheckpointError as error:
            raise ControllerError(str(error)) from error

    def newest(self) -> Checkpoint | None:
        """The newest that is committed, or what the run was told to start from."""
        return self._newest or self._spec.resume_from_checkpoint

    def kept(self) -> Kept:
        """What the folder held when the run ended."""
        return self._read_kept() if self._kept is None else self._kept

    def _read_kept(self) -> Kept:
        records = committed(self._run)
        ranked = best_first(records, self._config.checkpoint_score_attribute, self._config.checkpoint_score_order)
        folder = self._run.checkpoints
        best = [(checkpoint_of(folder / record.name), dict(record.metrics)) for record in reversed(ranked)]
        return Kept(
            metrics=self._metrics if self._metrics is not None else last_metrics(self._run),
            checkpoint=checkpoint_of(folder / records[-1].name) if records else None,
            path=self._run.location.path,
            filesystem=self._run.location.filesystem,
            best_checkpoints=best,
        )

    # -- within

    def _open(self, existed: bool) -> None:
        on_existing, name = self._spec.run_config.on_existing, self._spec.name
        if existed:
            if on_existing == "error":
                raise UsageError(
                    f"run {name!r} exists already in {self._location}, and on_existing='error'. Give this run another "
                    "name, or pass on_existing='resume' to go on with it or 'overwrite' to start anew"
                )
            self._replaces = on_existing == "overwrite"
            info = self._run.info()
            if info is not None and info.status == "FINISHED" and not self._replaces:
                logger.warning(
                    "run %r has finished already, and is entered again: get_checkpoint() is its newest. To keep runs "
                    "apart, give each a name; on_existing='error' refuses",
                    name,
                )
        self._run.create(_summary_of(self._spec))

    def _make_validations(self) -> Validations | None:
        config = self._spec.validation_config
        if config is None or not self._controller.traits.runs_aside:
            return None
        return Validations(
            self._run,
            config,
            self._controller,
            is_led=lambda: self._lost is None and self._run.current_attempt() == self._attempt,
            on_done=self._on_validated,
            on_log=lambda data: self._logs.add(LOG, data),
        )

    def _on_validated(self, record: CommitRecord) -> None:
        """On the thread of the validations: retention may now judge it by all its metrics, and remove it."""
        if self._config.num_to_keep is not None:
            self._validated_now[record.name] = record
            retention, attempt = self._retention, self._attempt
            self._tasks.submit(_RETENTION, lambda: self._retain(retention, attempt))

    def _finish_validations(self, error: BaseException | None) -> None:
        if self._validations is not None:
            is_over = self._lost is not None or (error is not None and not isinstance(error, Exception))
            self._validations.close(0.0 if is_over else None if error is None else self._config.drain_timeout_s)

    def _finish(self, error: BaseException | None) -> None:
        self._tasks.submit(_RETENTION, lambda: self._retain(self._retention, self._attempt, is_over=True))
        # A train function that failed, or was interrupted, has waited for its uploads as long as it was to.
        is_waited_for = error is not None and self._tasks.num_pending(UPLOAD) > 0
        self._tasks.close(None if error is None else 0.0 if is_waited_for else self._config.drain_timeout_s)
        while (failed := self._tasks.take_failure(_RETENTION)) is not None:
            logger.warning("run %r: retention failed: %s", self._spec.name, failed)
        try:
            if self._lost is not None or self._run.current_attempt() != self._attempt:
                self._history.close()
                if self._lost is not None and type(error) is WorkerGroupError:  # how it ended the ranks is no news
                    raise ControllerError(str(self._lost)) from error
                return
            self._seal()
            status = "FINISHED" if error is None else "ERRORED" if isinstance(error, Exception) else "ABORTED"
            self._run.finish(status, error=None if error is None else f"{type(error).__name__}: {text_of(error)}")
            if error is None:
                self._kept = self._read_kept()  # while nobody else may change it
        except StorageError as failure:  # the checkpoints are safe; what the user is told of comes first
            if error is None:
                raise
            logger.warning("run %r ended, but that could not be written: %s", self._spec.name, failure)

    def _retain(
        self, retention: Retention, attempt: int, committed_now: CommitRecord | None = None, *, is_over: bool = False
    ) -> None:
        """Remove what need not be kept, on the background thread.

        Args:
            retention: of the attempt.
            attempt: its number.
            committed_now: what was committed, if anything was.
            is_over: whether the run is, so that nothing is resumed from any more.
        """
        if committed_now is not None:
            retention.remember(committed_now)
        pending = {each.name for each in retention.records if each.status is _PENDING}
        for name in [name for name in pending if name in self._validated_now]:
            retention.remember(self._validated_now.pop(name))
            pending.discard(name)
        in_use = {self._resumed_from} if self._resumed_from and not is_over else set()
        if self._lost is None:
            retention.apply(pending | in_use, attempt=attempt)

    def _validated(self, records: list[CommitRecord]) -> list[CommitRecord]:
        """Make up for validations that a crash has cut off; without a validation to run they count as failed."""
        config, done = self._spec.validation_config, []
        for record in records:
            if record.status is not _PENDING:
                done.append(record)
            elif self._validations is not None:
                self._validations.submit(record)
                done.append(record)
            elif config is not None and not self._controller.traits.isolates_workers:
                logger.info("run %r: validating %s, which was cut off", self._run.name, record.name)
                done.append(validate(self._run, record, config))
            else:
                failed = ReportedCheckpointStatus.VALIDATION_FAILED
                done.append(update_record(self._run.checkpoints / record.name, status=failed) or record)
        return done

    def _seal(self) -> None:
        try:
            self._history.seal()
        except Exception:  # no fault of the history's may stand for how the run ended; its rows are in metrics.jsonl
            logger.warning("run %r: its history could not be sealed", self._spec.name, exc_info=True)

    def _release(self) -> None:
        try:
            self._lease.release()
        except StorageError as error:  # it runs out by itself
            logger.warning("run %r: its lease could not be given back: %s", self._spec.name, error)

    def _verify_level(self) -> str:
        """Checksums once a driver where that is cheap, sizes otherwise."""
        if self._config.verify != "auto":
            return self._config.verify
        is_first, self._was_verified = not self._was_verified, True
        return "full" if is_first and self._location.is_local else "size"

    def _flush(self) -> None:
        try:
            self._history.flush()
        except StorageError as error:  # the rows stay in memory, and are written by the next call
            logger.warning("run %r: its history could not be written yet: %s", self._spec.name, error)
        # Not on this thread, which renews the lease: a storage may take its time for the logs of many ranks.
        if self._logs.has_waiting and not self._tasks.num_pending(_LOGS):
            self._tasks.submit(_LOGS, self._logs.flush)

    def _on_lost(self, error: StorageError) -> None:
        logger.error("%s", error)
        self._lost = error
        self._controller.abort(str(error), grace_s=0.0)


def _summary_of(spec: RunSpec) -> dict[str, Any]:
    checkpoints = spec.run_config.checkpoint_config or CheckpointConfig()
    return {
        "controller": spec.controller,
        "num_workers": spec.scaling_config.num_workers,
        "scaling_config": repr(spec.scaling_config),
        "num_to_keep": checkpoints.num_to_keep,
        "checkpoint_score_attribute": checkpoints.checkpoint_score_attribute,
        "checkpoint_score_order": checkpoints.checkpoint_score_order,
        "failure_config": repr(spec.run_config.failure_config),
        "train_fn": getattr(spec.train_fn, "name", repr(spec.train_fn)),
        "datasets": sorted(spec.datasets),
        "metadata": dict(spec.metadata),
    }
