"""Validating a committed checkpoint, and, where that is done in line, merging the outcome into its record."""

from __future__ import annotations

import logging
import time
from typing import Any

from turnout.checkpoint import ReportedCheckpointStatus
from turnout.checks import refused
from turnout.config import ValidationConfig, ValidationTaskConfig
from turnout.errors import UsageError
from turnout.session.activation import outside
from turnout.session.metrics import plain_metrics
from turnout.storage.record import CommitRecord, checkpoint_of, update_record
from turnout.storage.run_folder import RunFolder

__all__ = ["measured", "remembered_task", "task_of", "task_of_record", "validate"]

logger = logging.getLogger(__name__)

_KEY = "validation"


def task_of(config: ValidationConfig, validation: bool | ValidationTaskConfig) -> ValidationTaskConfig:
    """What ``report(validation=...)`` asks for, over the defaults of the run."""
    defaults = config.task_config or ValidationTaskConfig()
    own = validation if isinstance(validation, ValidationTaskConfig) else ValidationTaskConfig()
    return ValidationTaskConfig(
        fn_kwargs={**(defaults.fn_kwargs or {}), **(own.fn_kwargs or {})},
        timeout_s=defaults.timeout_s if own.timeout_s is None else own.timeout_s,
    )


def remembered_task(task: ValidationTaskConfig) -> dict[str, Any]:  # Any: what JSON can hold
    """What a commit record keeps of a task, so that it can be made up for after a crash.

    Raises:
        UsageError: an argument is nothing that JSON can hold.
    """
    try:
        fn_kwargs = plain_metrics(task.fn_kwargs)
    except UsageError as error:
        remedy = f"takes keyword arguments that JSON can hold, since they are kept with the checkpoint ({error})"
        raise refused("report(): validation's fn_kwargs", task.fn_kwargs, remedy) from error
    return {_KEY: {"fn_kwargs": fn_kwargs, "timeout_s": task.timeout_s}}


def task_of_record(record: CommitRecord) -> ValidationTaskConfig:
    """The task that a commit record keeps."""
    return ValidationTaskConfig(**record.extra.get(_KEY, {}))


def measured(run: RunFolder, record: CommitRecord, config: ValidationConfig) -> dict[str, Any]:
    """The metrics that the validation which ``record`` remembers returns, in types that JSON can hold."""
    with outside():
        returned = config.fn(checkpoint_of(run.checkpoints / record.name), **(task_of_record(record).fn_kwargs or {}))
    return plain_metrics(returned)


def validate(run: RunFolder, record: CommitRecord, config: ValidationConfig) -> CommitRecord:
    """Run the validation that ``record`` remembers in line; one that fails is logged, and ends nothing.

    Returns:
        The record as it is afterwards, with the metrics that the validation returned.
    """
    task = task_of_record(record)
    metrics, status = None, ReportedCheckpointStatus.VALIDATION_FAILED
    started = time.monotonic()
    try:
        metrics, status = measured(run, record, config), ReportedCheckpointStatus.VALIDATED
    except Exception:
        logger.exception("the validation of checkpoint %s failed; training goes on", record.name)
    taken = time.monotonic() - started
    if task.timeout_s is not None and taken > task.timeout_s:
        metrics, status = None, ReportedCheckpointStatus.VALIDATION_TIMEOUT
        logger.warning(
            "the validation of checkpoint %s took %.1f s, longer than its timeout_s=%g, and does not count; in this "
            "process it cannot be interrupted",
            record.name,
            taken,
            task.timeout_s,
        )
    return update_record(run.checkpoints / record.name, metrics=metrics, status=status) or record
