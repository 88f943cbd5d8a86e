"""`Run`: one `fit()`, from its specification to its `Result`: the attempt loop, written once for every track."""

from __future__ import annotations

import logging
import time
from typing import Any

from turnout.checkpoint import Checkpoint
from turnout.config import FailureConfig, TrainRunContext
from turnout.controllers.base import Controller, Ending, RunSpec
from turnout.errors import TrainingFailedError, UnsupportedError
from turnout.result import Result
from turnout.runtime.attempt import Attempt
from turnout.runtime.callbacks import CallbackDispatcher
from turnout.runtime.failures import Decision, FailureKind, FailurePolicy, error_of
from turnout.runtime.worker import TrainWorker
from turnout.session.checkpoints import InMemoryCheckpoints

__all__ = ["Run"]

logger = logging.getLogger(__name__)


class Run:
    """Drives a controller through attempts until one finishes or no retry is left.

    Args:
        spec: what to run.
        controller: places its workers.
    """

    def __init__(self, spec: RunSpec, controller: Controller) -> None:
        self._spec = spec
        self._controller = controller
        self._callbacks = CallbackDispatcher(spec.run_config.callbacks or (), _context_of(spec))
        self._has_callbacks = bool(spec.run_config.callbacks)
        self._policy = FailurePolicy(spec.run_config.failure_config or FailureConfig())
        self._checkpoints = InMemoryCheckpoints(spec.resume_from_checkpoint)
        self._metrics: dict[str, Any] | None = None  # Any: a metric is whatever JSON can hold
        self._checkpoint: Checkpoint | None = None
        if spec.run_config.storage_path is not None:
            raise UnsupportedError("RunConfig.storage_path: runs with storage are not supported yet")

    def execute(self) -> Result:
        """Run attempts until one finishes.

        Raises:
            TrainingFailedError: the last attempt's error; for an exception of the train function, an instance of its
                class too.
        """
        worker = TrainWorker(
            spec=self._spec,
            forms_group=self._controller.traits.forms_group,
            checkpoints=lambda: self._checkpoints,
        )
        number = 0
        while True:
            attempt = Attempt(number, self._on_report)
            outcome = self._controller.run_attempt(worker, attempt.take)
            if outcome.ending is Ending.ENDED and not attempt.failures:
                return self._result(attempt)
            decision = self._policy.decide(FailureKind.of(outcome), attempt)
            error = error_of(outcome, attempt, decision, self._spec.name)
            self._callbacks.after_exception(attempt.failures or {0: error})
            if not decision.retry or not self._controller.traits.restartable:
                raise error
            self._announce_retry(error, decision)
            time.sleep(decision.wait_s)
            number += 1

    def _on_report(self, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None) -> None:
        self._metrics = metrics[0]
        if checkpoint is not None:
            self._checkpoint = checkpoint
        if self._has_callbacks:
            self._callbacks.after_report(metrics, checkpoint)

    def _announce_retry(self, error: TrainingFailedError, decision: Decision) -> None:
        resumes = self._checkpoints.latest()
        logger.warning(
            "run %r failed: %s: %s (%s); it starts again %s, from %s%s",
            self._spec.name,
            type(error).__name__,
            error,
            decision.count,
            f"in {decision.wait_s:g} s" if decision.wait_s else "now",
            "its beginning" if resumes is None else resumes.path,
            "; this looks deterministic: the same exception at the same line as before" * decision.looks_deterministic,
        )

    def _result(self, attempt: Attempt) -> Result:
        values = [attempt.return_values.get(rank) for rank in range(len(attempt.return_values))]
        return Result(
            metrics=self._metrics,
            checkpoint=self._checkpoint,
            return_value=values[0] if values else None,
            return_values=values,
        )


def _context_of(spec: RunSpec) -> TrainRunContext:
    return TrainRunContext(
        run_id=spec.run_id,
        run_config=spec.run_config,
        train_loop_config=spec.train_loop_config,
        scaling_config=spec.scaling_config,
        backend_config=spec.backend_config,
        dataset_config=spec.dataset_config,
    )
