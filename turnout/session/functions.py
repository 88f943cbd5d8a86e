"""The functions that a train function calls; each asks the active session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnout.checkpoint import Checkpoint, ReportedCheckpoint
from turnout.config import CheckpointConsistencyMode, CheckpointUploadMode, PreemptionInfo, ValidationTaskConfig
from turnout.session.activation import active, get_here
from turnout.session.context import TrainContext

__all__ = [
    "barrier",
    "broadcast_from_rank_zero",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "report",
]


def report(
    metrics: dict[str, Any],  # Any: a metric is whatever JSON can hold
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
    validation: bool | ValidationTaskConfig = False,
) -> None:
    """Report metrics and, if given, a checkpoint.

    Args:
        metrics: what JSON can hold; an array or tensor of one element becomes its number.
        checkpoint: a folder of files to keep. A report without one never forgets the last.
        checkpoint_dir_name: the name of the folder it is kept in; None names it by its number.
        checkpoint_upload_mode: when the call returns, and who copies the files.
        delete_local_checkpoint_after_upload: remove the caller's folder once the files are safe; None does so for
            ASYNC only.
        checkpoint_upload_fn: called as ``fn(checkpoint, dir_name)`` in place of Turnout's own copy; returns where the
            checkpoint is.
        validation: run the trainer's `ValidationConfig` on the checkpoint, with these arguments if any are given.

    Raises:
        UsageError: outside a run, or an argument cannot be meant; for a metric, the text names its key.
        CheckpointNotFoundError: the checkpoint's folder does not exist.
    """
    (get_here() or active()).report(  # the shortcut is an eighth of what a report costs
        metrics,
        checkpoint,
        checkpoint_dir_name,
        checkpoint_upload_mode,
        delete_local_checkpoint_after_upload,
        checkpoint_upload_fn,
        validation,
    )


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of this run, or the one that it was told to start from, or None.

    A train function that asks at its start resumes: after a retry, and when a run with storage is started again.
    """
    return active().get_checkpoint()


def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED, timeout_s: float | None = None
) -> list[ReportedCheckpoint]:
    """The checkpoints of this run that are kept, oldest first; always empty for a run in memory.

    Args:
        consistency_mode: whether to wait for validations, or only for commits.
        timeout_s: seconds to wait; what there is then is returned.
    """
    return active().get_all_reported_checkpoints(consistency_mode, timeout_s)


def get_context() -> TrainContext:
    """The run that this code trains in, and this worker's place in it."""
    return active().context


def get_dataset_shard(dataset_name: str | None = None) -> Any:  # Any: data of the user's
    """This rank's share of one of the trainer's ``datasets``.

    Args:
        dataset_name: its name; may be left out where there is only one.

    Raises:
        UsageError: there is no such dataset, or several and no name; the text names them.
    """
    return active().get_dataset_shard(dataset_name)


def get_preemption_info() -> PreemptionInfo | None:
    """The notice that machines of this run will be taken away, if there is one; the same on all ranks.

    It is what their last meeting has told them, as a `report` to storage or a `barrier`, so no rank asks here in vain
    and none knows before another. Time to report a checkpoint: the next attempt starts from it, on other machines.
    """
    return active().get_preemption_info()


def barrier() -> None:
    """Return once every rank has called it; at once where there is one."""
    active().collective.barrier("barrier")


def broadcast_from_rank_zero(data: Any) -> Any:  # Any: whatever the ranks pass each other
    """Return rank 0's ``data`` on every rank; what the others pass is not used."""
    return active().collective.broadcast("broadcast_from_rank_zero", data)
