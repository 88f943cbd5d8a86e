"""`Validations`: committed checkpoints are validated beside training, one at a time, each in a process of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnout.checkpoint import ReportedCheckpointStatus
from turnout.config import ValidationConfig
from turnout.controllers.base import Controller
from turnout.errors import StorageError
from turnout.runtime.traceback import place_of, users_traceback
from turnout.session import Channel
from turnout.session.events import Died, Failed, Finished, Log, WorkerEvent
from turnout.session.task_queue import TaskQueue
from turnout.session.validation import measured, task_of_record
from turnout.storage.record import CommitRecord, update_record
from turnout.storage.run_folder import RunFolder

__all__ = ["LOG", "Validations"]

logger = logging.getLogger(__name__)

LOG = "validation"
"""The name of the log that has what validations print."""

_KIND = "validation"
_KILL_S = 10.0


class Validations:
    """Validates what it is given, in order, on a thread of its own that waits for one process after another.

    Args:
        run: the run.
        config: what validates.
        controller: runs it.
        is_led: whether this driver still leads the run; else nothing is written any more.
        on_done: told of each record, as it is afterwards; on the thread.
        on_log: told of what is printed; on the thread.
    """

    def __init__(
        self,
        run: RunFolder,
        config: ValidationConfig,
        controller: Controller,
        *,
        is_led: Callable[[], bool],
        on_done: Callable[[CommitRecord], None],
        on_log: Callable[[bytes], None],
    ) -> None:
        self._run = run
        self._config = config
        self._controller = controller
        self._is_led = is_led
        self._on_done = on_done
        self._on_log = on_log
        self._queue = TaskQueue("turnout-validations")
        self._submitted: set[tuple[str, int]] = set()
        self._given_up = threading.Event()

    def submit(self, record: CommitRecord) -> None:
        """Have a checkpoint validated, unless it is on the way to that already."""
        key = (record.name, record.attempt)
        if key not in self._submitted:
            self._submitted.add(key)
            self._queue.submit(_KIND, lambda: self._validate(record))

    def close(self, timeout_s: float | None) -> None:
        """Wait for those that are under way.

        Args:
            timeout_s: seconds to wait; what is left then is given up, and made up for when the run is entered again.

        Raises:
            KeyboardInterrupt: the user does not wait; what is left is given up.
        """
        try:
            if count := self._queue.num_pending():
                logger.info("run %r: waiting for %d validation(s)", self._run.name, count)
            if not self._queue.drain(timeout_s=timeout_s):
                self._given_up.set()
        except KeyboardInterrupt:
            self._given_up.set()
            raise
        finally:
            if self._given_up.is_set():
                logger.warning(
                    "run %r: %d validation(s) are given up, and made up for when the run is entered again",
                    self._run.name,
                    self._queue.num_pending(),
                )
                self._controller.end_aside()
            self._queue.close(_KILL_S)

    def _validate(self, record: CommitRecord) -> None:
        if self._given_up.is_set():
            return
        self._on_log(f"--- {record.name} ---\n".encode())
        timeout_s = task_of_record(record).timeout_s
        outcome, has_ended = _Outcome(self._on_log), True
        try:
            worker = _Validate(self._run, record, self._config)
            has_ended = self._controller.run_aside(worker, outcome.take, timeout_s)
        except Exception as error:  # the edge of the thread: it is this validation's failure, and ends nothing
            outcome.problem = f"{type(error).__name__}: {error}"
        if self._given_up.is_set():
            return
        status = ReportedCheckpointStatus.VALIDATED
        if not has_ended:
            status, outcome.metrics = ReportedCheckpointStatus.VALIDATION_TIMEOUT, None
            logger.warning(
                "the validation of checkpoint %s took longer than its timeout_s=%g, and was killed; training goes on",
                record.name,
                timeout_s,
            )
        elif outcome.metrics is None:
            status = ReportedCheckpointStatus.VALIDATION_FAILED
            logger.error("the validation of checkpoint %s failed; training goes on: %s", record.name, outcome.problem)
        self._write(record, outcome.metrics, status)

    def _write(self, record: CommitRecord, metrics: dict[str, Any] | None, status: ReportedCheckpointStatus) -> None:
        try:
            if not self._is_led():
                return
            updated = update_record(self._run.checkpoints / record.name, metrics=metrics, status=status)
        except StorageError as error:
            logger.warning("the outcome of the validation of checkpoint %s cannot be written: %s", record.name, error)
        else:
            if updated is not None:
                self._on_done(updated)


@dataclass(frozen=True, slots=True)
class _Validate:
    """What the process runs."""

    run: RunFolder
    record: CommitRecord
    config: ValidationConfig

    def __call__(self, channel: Channel) -> None:
        rank = channel.ranks.rank
        try:
            metrics = measured(self.run, self.record, self.config)
        except Exception as error:  # the edge of the process
            channel.publish(Failed(rank, error.with_traceback(users_traceback(error)), place_of(error)))
        else:
            channel.publish(Finished(rank, metrics))


class _Outcome:
    """What the process has told."""

    def __init__(self, on_log: Callable[[bytes], None]) -> None:
        self.metrics: dict[str, Any] | None = None  # Any: a metric is whatever JSON can hold
        self.problem = "its process ended without a word"
        self._on_log = on_log

    def take(self, event: WorkerEvent) -> None:
        match event:
            case Finished(value=value):
                self.metrics = value
            case Failed(error=error, traceback=text):
                self.problem = text or f"{type(error).__name__}: {error}"
            case Died(reason=reason):
                self.problem = f"its process {reason}"
            case Log(data=data):
                self._on_log(data)
