"""`StoredCheckpoints`: the part of a session that commits what is reported to the run's folder."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from turnout.checkpoint import Checkpoint, ReportedCheckpoint, ReportedCheckpointStatus
from turnout.checks import refused
from turnout.config import (
    CheckpointConfig,
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    ValidationConfig,
    ValidationTaskConfig,
)
from turnout.errors import CheckpointError, StorageError, UsageError
from turnout.failpoints import failpoint
from turnout.session.checkpoints import CheckpointReport
from turnout.session.collective import Collective, SoloCollective
from turnout.session.events import Committed, Reported, Saved
from turnout.session.outbox import Outbox
from turnout.session.run_storage import RunStorage
from turnout.session.task_queue import TaskQueue
from turnout.session.validation import remembered_task, task_of, validate
from turnout.storage.commit import CommitRequest, commit, stage
from turnout.storage.location import remove_tree
from turnout.storage.reading import committed
from turnout.storage.record import checkpoint_of, read_record, reported
from turnout.storage.run_folder import RunFolder, checkpoint_name

__all__ = ["UPLOAD", "StoredCheckpoints", "StoredPlan"]

logger = logging.getLogger(__name__)

UPLOAD = "upload"
"""The kind of tasks that commit in the background; see `TaskQueue`."""
_PENDING = ReportedCheckpointStatus.PENDING_VALIDATION
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.5  # at a record that waits for its validation


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


class _Offer(NamedTuple):
    """What a rank tells the others at a report.

    Args:
        mode: of the checkpoint that it has; None if it has none.
        dir_name: that it gives.
        validation: that it asks for.
        problem: why it cannot report; None if it can.
        has_failed: whether an upload of its own has failed in the background.
        newest: the index of the newest checkpoint that it knows to be committed in the background.
    """

    mode: CheckpointUploadMode | None = None
    dir_name: str | None = None
    validation: ValidationTaskConfig | None = None
    problem: str | None = None
    has_failed: bool = False
    newest: int = -1


class StoredCheckpoints:
    """Commits reported checkpoints, at once or in the background, in the order in which they were reported.

    With several ranks every report is a meeting of all: they tell each other whether they have a checkpoint, so that
    one of any rank is one of all, and what went wrong on one, so that they stay in step.

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
        # A rank that a controller has placed meets even alone: so it is told at a report that the run is to stop.
        self._meets = not isinstance(collective, SoloCollective)
        self._validates = plan.validates_here and collective.rank == 0
        self._committed: list[tuple[int, Checkpoint]] = []
        """In the background, and not yet known to be so by all ranks; oldest first."""
        self._pid = os.getpid()
        self._is_saving = False  # one thread at a time comes here, so whoever finds it set came from within

    @property
    def meets(self) -> bool:
        """Whether `save` is called for every report."""
        return self._meets

    def save(self, report: CheckpointReport, event: Reported | None = None) -> Saved | None:
        """Commit the report's checkpoint, or take its files and commit them in the background; None if there is none.

        Args:
            report: this rank's.
            event: with several ranks, is published in the same breath if none of them has a checkpoint.

        Raises:
            UsageError: the arguments do not go together, or the name is taken.
            CheckpointError: the files cannot be stored, another rank has failed to store its own, or the attempt has
                been superseded.
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
                if self._meets:
                    return self._save_with_others(report, event)
                self._raise_earlier_failure()
                validation = self._checked(report)
                return self._save(report, report.upload_mode, self._name_of(report.dir_name), validation)
        finally:
            self._is_saving = False

    def latest(self) -> Checkpoint | None:
        """The newest that is committed, or what the attempt goes on from."""
        return self._latest

    def reported(
        self, consistency_mode: CheckpointConsistencyMode, timeout_s: float | None
    ) -> list[ReportedCheckpoint]:
        """All that are committed, oldest first; what is under way is waited for first."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if os.getpid() == self._pid:  # a forked copy of the worker has no uploads under way
            self._uploads.drain(UPLOAD, timeout_s)
        run = self._plan.run
        if consistency_mode is CheckpointConsistencyMode.VALIDATED and not self._validates:
            self._wait_for_validations(deadline)
        return [reported(run.checkpoints / record.name, record) for record in committed(run)]

    def _wait_for_validations(self, deadline: float) -> None:
        """Rank 0 or the driver has them run; their outcome is in the records, which are looked at now and then."""
        checkpoints = self._plan.run.checkpoints
        names = [record.name for record in committed(self._plan.run) if record.status is _PENDING]
        wait_s = _FIRST_LOOK_S
        while names:
            record = read_record(checkpoints / names[0])
            if record is None or record.status is not _PENDING:
                del names[0]
            elif (left := deadline - time.monotonic()) <= 0:
                return
            else:
                time.sleep(min(left, wait_s))
                wait_s = min(2 * wait_s, _LONGEST_LOOK_S)

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

    def _save_with_others(self, report: CheckpointReport, event: Reported | None) -> Saved | None:
        offer, problem = None, None
        try:
            if report.problem is not None:
                raise report.problem
            if report.checkpoint is not None:
                validation = self._checked(report)
                offer = _Offer(report.upload_mode, report.dir_name, validation)
        except Exception as error:  # it is told to the others, and raised when they have heard of it
            problem, offer = error, _Offer(problem=f"{type(error).__name__}: {error}")
        if self._uploads.has_failed(UPLOAD) or self._committed:
            newest = self._committed[-1][0] if self._committed else -1
            offer = (offer or _Offer())._replace(has_failed=self._uploads.has_failed(UPLOAD), newest=newest)
        told: list[_Offer | None] = self._collective.gather("report", offer, event)
        if not any(told):  # by far the most: metrics alone
            return None
        self._learn_what_is_committed(told)
        if problem is not None:
            raise problem
        self._raise_for_others(told)
        offers = {rank: each for rank, each in enumerate(told) if each is not None and each.mode is not None}
        if not offers:
            if event is not None:
                self._outbox.publish(event)
            return None
        modes = {each.mode for each in offers.values()}
        if len(modes) > 1:
            shown = ", ".join(f"rank {rank}: {each.mode}" for rank, each in offers.items())
            raise UsageError(f"report(): the ranks give different checkpoint_upload_modes ({shown}); give one")
        first = next(iter(offers.values()))
        assert first.mode is not None, "those without a checkpoint are left out"
        rank_zeros = None if told[0] is None else told[0].dir_name
        return self._save(
            report, first.mode, self._name_of(report.dir_name), first.validation, self._name_of(rank_zeros)
        )

    def _learn_what_is_committed(self, told: list[_Offer | None]) -> None:
        """`latest` is the same on all ranks at all times: it goes on once all know of a background commit."""
        agreed = min(-1 if each is None else each.newest for each in told)
        while self._committed and self._committed[0][0] <= agreed:
            self._latest = self._committed.pop(0)[1]

    def _raise_for_others(self, told: list[_Offer | None]) -> None:
        problems = {rank: each.problem for rank, each in enumerate(told) if each is not None and each.problem}
        if problems:
            text = "; ".join(f"rank {rank}: {problem}" for rank, problem in problems.items())
            raise CheckpointError(f"report(): nothing is reported, as another rank cannot: {text}")
        if any(each is not None and each.has_failed for each in told):
            self._uploads.drain(UPLOAD)  # one that fails on one rank fails on all
            self._raise_earlier_failure()
            raise CheckpointError("report(): the upload of an earlier ASYNC report has failed on another rank")

    def _checked(self, report: CheckpointReport) -> ValidationTaskConfig | None:
        """Refuse arguments that do not go together; returns the validation that they ask for."""
        validation = self._validation_of(report)
        self._check_mode(report)
        self._check_name(report.dir_name)
        return validation

    def _save(
        self,
        report: CheckpointReport,
        mode: CheckpointUploadMode,
        dir_name: str | None,
        validation: ValidationTaskConfig | None,
        name: str | None = None,
    ) -> Saved:
        """Save what was agreed on.

        Args:
            report: this rank's.
            mode: of all ranks.
            dir_name: what this rank calls it; the commit refuses one that differs from rank 0's.
            validation: that is asked for.
            name: what rank 0 calls it.
        """
        delete = report.delete_local
        if delete is None:
            delete = mode.default_delete_local_checkpoint_after_upload()
        request = CommitRequest(
            index=self._index,
            attempt=self._plan.attempt,
            metrics=report.metrics,
            checkpoint=report.checkpoint,
            dir_name=dir_name,
            move=delete,
            in_place=mode is CheckpointUploadMode.NO_UPLOAD,
            upload_fn=report.upload_fn,
            status=ReportedCheckpointStatus.COMMITTED if validation is None else _PENDING,
            extra={} if validation is None else remembered_task(validation),
        )
        self._index += 1
        if mode is CheckpointUploadMode.ASYNC:
            return self._begin(request, delete, validation, name or dir_name)
        self._uploads.drain(UPLOAD)  # commits keep the order of the reports
        self._raise_earlier_failure()
        saved = self._commit(request, validation, self._collective)
        self._committed.clear()  # all older than this one
        self._latest = saved.checkpoint
        return saved

    def _begin(
        self, request: CommitRequest, delete: bool, validation: ValidationTaskConfig | None, name: str | None
    ) -> Saved:
        run, source, rank = self._plan.run, request.checkpoint, self._collective.rank
        staged = self._stage(request, move=delete)
        failpoint("report.after_stage", rank)
        if delete and source is not None and source.is_local:
            remove_tree(source.path)  # now that all have what they need of it: it may be another rank's folder too
        later = replace(request, checkpoint=staged, staged=True, move=True)
        meeting = self._collective.branch(UPLOAD)

        def upload() -> None:
            saved = self._commit(later, validation, meeting)
            if self._meets:
                self._committed.append((request.index, saved.checkpoint))
            else:
                self._latest = saved.checkpoint
            self._outbox.publish(Committed(rank, saved))

        if name is not None:
            self._names.add(name)
        self._uploads.submit(UPLOAD, upload, max_pending=self._plan.config.max_pending_uploads)
        folder = run.checkpoint_path(name or checkpoint_name(request.index, request.attempt))
        return Saved(checkpoint_of(folder), is_committed=False, validation=validation)

    def _stage(self, request: CommitRequest, *, move: bool) -> Checkpoint | None:
        """Take the files aside, on all ranks or on none: who cannot has no part in the commit that is to come."""
        rank, staged = self._collective.rank, None
        problem: Exception | None = None
        if request.checkpoint is not None:
            name = f"{request.attempt}-{request.index}"
            try:
                staged = stage(self._plan.run, request.checkpoint, name=name, rank=rank, move=move)
            except Exception as error:  # it is told to the others, and raised when they have heard of it
                problem = error
        if self._meets:
            told = self._collective.gather(
                "staged", None if problem is None else f"{type(problem).__name__}: {problem}"
            )
        else:
            told = []
        others = {each: text for each, text in enumerate(told) if text is not None and each != rank}
        if (problem is not None or others) and staged is not None:
            remove_tree(staged.path)
        if problem is not None:
            raise problem
        if others:
            shown = "; ".join(f"rank {each}: {text}" for each, text in others.items())
            raise CheckpointError(f"report(): checkpoint {request.index} is not committed: {shown}")
        return staged

    def _commit(self, request: CommitRequest, validation: ValidationTaskConfig | None, meeting: Collective) -> Saved:
        run = self._plan.run
        record = commit(run, meeting, request)
        assert record is not None, "a rank brought a checkpoint"
        checkpoint = checkpoint_of(run.checkpoints / record.name)
        self._names.add(record.name)
        if validation is not None and self._validates:
            assert self._plan.validation_config is not None, "a validation was asked for"
            record = validate(run, record, self._plan.validation_config)
        return Saved(checkpoint, is_committed=True, record=record, validation=validation)

    def _name_of(self, given: str | None) -> str | None:
        is_first = self._plan.marks_names and self._index == self._plan.next_index
        return f"{given}-a{self._plan.attempt}" if is_first and given else given

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
