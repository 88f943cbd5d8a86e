"""`TrainFnUtils`: what `turnout.report` and its kin delegate to, composed of the parts that a mode swaps."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from turnout.checkpoint import Checkpoint, ReportedCheckpoint
from turnout.checks import check_file_name, check_number, refused
from turnout.config import CheckpointConsistencyMode, CheckpointUploadMode, PreemptionInfo, ValidationTaskConfig
from turnout.errors import CheckpointNotFoundError, UsageError
from turnout.failpoints import failpoint
from turnout.session.checkpoints import CheckpointReport, Checkpoints
from turnout.session.collective import Collective, SoloCollective
from turnout.session.context import TrainContext
from turnout.session.events import Reported, Saved
from turnout.session.metrics import plain_metrics
from turnout.session.outbox import Outbox

__all__ = ["LocalTrainFnUtils", "TrainFnUtils", "WorkerTrainFnUtils"]

logger = logging.getLogger(__name__)

_new_tuple = tuple.__new__


class TrainFnUtils:
    """One worker's side of a run. Its parts are what a mode swaps; what the calls mean is written here, once.

    Args:
        run_name: the run's name.
        outbox: carries events to the driver; it says who this worker is.
        checkpoints: where reported checkpoints go.
        collective: how ranks meet; None for one rank alone.
        shards: what `get_dataset_shard` gives, by name.
    """

    def __init__(
        self,
        *,
        run_name: str,
        outbox: Outbox,
        checkpoints: Checkpoints,
        collective: Collective | None = None,
        shards: Mapping[str, Any] | None = None,  # Any: data of the user's
    ) -> None:
        self.context = TrainContext(run_name=run_name, ranks=outbox.ranks, checkpoints=checkpoints)
        self.collective = collective or SoloCollective()
        self._outbox = outbox
        self._rank = outbox.ranks.rank
        self._checkpoints = checkpoints
        self._meets = checkpoints.meets
        self._shards = dict(shards or {})
        # Checkpoints of several threads are saved one after another. It is not the outbox's lock, which a checkpoint
        # that is committed in the background needs while this one waits for its turn.
        self._saving = threading.RLock()
        self._endings = contextlib.ExitStack()
        self._is_closed = False

    @staticmethod
    def is_distributed() -> bool:
        """Whether the workers are processes that a controller placed, and not this one."""
        return True

    def report(
        self,
        metrics: dict[str, Any],  # Any: a metric is whatever JSON can hold
        checkpoint: Checkpoint | None = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        """See `turnout.report`."""
        failpoint("report", self._rank)
        if checkpoint is None and validation is False and not self._meets:
            self._publish(plain_metrics(metrics), None)
            return
        try:
            report = _checked(
                metrics,
                checkpoint,
                checkpoint_dir_name,
                checkpoint_upload_mode,
                delete_local_checkpoint_after_upload,
                checkpoint_upload_fn,
                validation,
            )
        except Exception as problem:
            if not self._meets:
                raise
            report = CheckpointReport(metrics={}, problem=problem)
        with self._saving:
            self._outbox.require_open()
            if not self._meets:
                self._publish(report.metrics, self._checkpoints.save(report))
                return
            number = self._outbox.num_reports
            event = _new_tuple(Reported, (self._rank, number, report.metrics, None))
            saved = self._checkpoints.save(report, event)
            if saved is not None:
                self._publish(report.metrics, saved)
                return
            self._outbox.num_reports = number + 1  # the event has gone with the meeting
            self._log(report.metrics, None)

    def _publish(self, plain: dict[str, Any], saved: Saved | None) -> None:
        outbox = self._outbox
        with outbox.lock:  # Outbox.publish written out, and a named tuple made without its constructor: a fifth of
            if outbox.refusal is not None:  # what a report costs
                outbox.require_open()
            outbox.channel.publish(_new_tuple(Reported, (self._rank, outbox.num_reports, plain, saved)))
            outbox.num_reports += 1
        self._log(plain, saved)

    def _log(self, plain: dict[str, Any], saved: Saved | None) -> None:
        if logger.isEnabledFor(logging.INFO) and (self._rank == 0 or not self._meets):  # once for all who met
            logger.info("reported %s%s", plain, "" if saved is None else f" with {saved.checkpoint.path}")

    def get_checkpoint(self) -> Checkpoint | None:
        """See `turnout.get_checkpoint`."""
        return self._checkpoints.latest()

    def get_all_reported_checkpoints(
        self,
        consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
        timeout_s: float | None = None,
    ) -> list[ReportedCheckpoint]:
        """See `turnout.get_all_reported_checkpoints`."""
        if not isinstance(consistency_mode, CheckpointConsistencyMode):
            raise refused("consistency_mode", consistency_mode, "takes a turnout.CheckpointConsistencyMode")
        if timeout_s is not None:
            timeout_s = check_number("timeout_s", timeout_s, at_least=0, unit="seconds")
        return self._checkpoints.reported(consistency_mode, timeout_s)

    def get_dataset_shard(self, dataset_name: str | None = None) -> Any:  # Any: data of the user's
        """See `turnout.get_dataset_shard`."""
        known = ", ".join(repr(name) for name in self._shards)
        if not self._shards:
            raise UsageError("get_dataset_shard(): the trainer was given no datasets; pass datasets={'train': ...}")
        if dataset_name is None:
            if len(self._shards) > 1:
                raise UsageError(f"get_dataset_shard(): the trainer has several datasets, so say which one: {known}")
            return next(iter(self._shards.values()))
        if not isinstance(dataset_name, str) or dataset_name not in self._shards:
            raise UsageError(f"get_dataset_shard({dataset_name!r}): no such dataset; the trainer has {known}")
        return self._shards[dataset_name]

    def get_preemption_info(self) -> PreemptionInfo | None:
        """See `turnout.get_preemption_info`."""
        return self._outbox.channel.notice

    def finish(self, failure: BaseException | None) -> None:
        """The train function has ended: wait for what is under way; a failed upload is raised.

        Args:
            failure: what the function raised, if it did.
        """
        self._checkpoints.finish(failure)

    def at_end(self, ending: Callable[[], object]) -> None:
        """Have something that was set up for this run undone at its end, in this process; the last comes first.

        Args:
            ending: what undoes it; an exception of it is logged, and hides nothing.
        """

        def end() -> None:
            try:
                ending()
            except Exception:  # how the train function has ended is what the user must see
                logger.warning("could not undo all that was set up for the run", exc_info=True)

        self._endings.callback(end)

    @property
    def is_closed(self) -> bool:
        """Whether the train function has ended."""
        return self._is_closed

    def close(self) -> None:
        """A thread that the train function left behind can report no more."""
        self._is_closed = True
        self._outbox.close("the run that this thread was started in has ended")
        self._endings.close()

    def become_forked_child(self) -> None:
        """This process is a copy of the worker, such as a data loader's: it may ask, and not report or meet."""
        self._saving = threading.RLock()
        self._endings = contextlib.ExitStack()
        self._outbox.become_forked_child(
            f"this process (pid {os.getpid()}) was forked from the worker, for example by a data loader; "
            "report from the train function itself"
        )
        self.collective = _ForkedCollective()


class LocalTrainFnUtils(TrainFnUtils):
    """The composition for a worker that is the current process: alone, or one of those that torchrun has started."""

    @staticmethod
    def is_distributed() -> bool:
        """The worker is the current process."""
        return False


class WorkerTrainFnUtils(TrainFnUtils):
    """The composition for a worker that a controller placed: it meets the others over its channel."""


class _ForkedCollective(SoloCollective):
    """Refuses: a forked copy of a worker is not a rank, and the others do not wait for it."""

    def barrier(self, tag: str) -> None:
        raise UsageError(
            f"{tag}(): this process was forked from a worker and is no rank; call it in the train function"
        )

    def broadcast(self, tag: str, value: Any) -> Any:  # Any: never returns
        self.barrier(tag)

    def gather(self, tag: str, value: Any, event: Reported | None = None) -> list[Any]:  # Any: never returns
        self.barrier(tag)
        return []


def _checked(
    metrics: Any,
    checkpoint: Any,  # Any: these are what this function checks
    dir_name: Any,
    upload_mode: Any,
    delete_local: Any,
    upload_fn: Any,
    validation: Any,
) -> CheckpointReport:
    plain = plain_metrics(metrics)
    if checkpoint is None and validation is False:
        return CheckpointReport(metrics=plain)
    if checkpoint is None:
        raise refused("report(): validation", validation, "validates a checkpoint, and the call carries none")
    if not isinstance(checkpoint, Checkpoint):
        remedy = "takes a turnout.Checkpoint, for example Checkpoint.from_directory(folder)"
        raise refused("report(): checkpoint", checkpoint, remedy)
    if checkpoint.is_local and not os.path.isdir(checkpoint.path):
        found = "is a file; put it into a folder" if os.path.exists(checkpoint.path) else "does not exist"
        raise CheckpointNotFoundError(f"report(): the checkpoint's folder {checkpoint.path} {found}")
    if not checkpoint.is_local:
        checkpoint._require()
    if dir_name is not None:
        check_file_name("report(): checkpoint_dir_name", dir_name, "a checkpoint's name")
    if not isinstance(upload_mode, CheckpointUploadMode):
        raise refused("report(): checkpoint_upload_mode", upload_mode, "takes a turnout.CheckpointUploadMode")
    if delete_local is not None and not isinstance(delete_local, bool):
        raise refused("report(): delete_local_checkpoint_after_upload", delete_local, "takes True, False or None")
    if upload_fn is not None and not callable(upload_fn):
        raise refused("report(): checkpoint_upload_fn", upload_fn, "takes a function of a checkpoint and a name")
    if not isinstance(validation, (bool, ValidationTaskConfig)):
        raise refused("report(): validation", validation, "takes True, False or a turnout.ValidationTaskConfig")
    return CheckpointReport(
        metrics=plain,
        checkpoint=checkpoint,
        dir_name=dir_name,
        upload_mode=upload_mode,
        delete_local=delete_local,
        upload_fn=upload_fn,
        validation=validation,
    )
