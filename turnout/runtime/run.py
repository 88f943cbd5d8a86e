"""`Run`: one `fit()`, from its specification to its `Result`: the attempt loop, written once for every track."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from turnout.checkpoint import Checkpoint
from turnout.combined_error import text_of
from turnout.config import FailureConfig, TrainRunContext
from turnout.controllers.base import Controller, Ending, RunSpec
from turnout.errors import PreemptionError, TrainingFailedError
from turnout.result import Result
from turnout.runtime.attempt import Attempt
from turnout.runtime.callbacks import CallbackDispatcher
from turnout.runtime.console import RankConsole
from turnout.runtime.failures import Decision, FailurePolicy, error_of
from turnout.runtime.keeping import Keeper, MemoryKeeper
from turnout.runtime.worker import TrainWorker
from turnout.session.events import Saved

__all__ = ["Run"]

logger = logging.getLogger(__name__)


class Run:
    """Drives a controller through attempts until one finishes or no retry is left.

    Args:
        controller: places the workers of its run.
    """

    def __init__(self, controller: Controller) -> None:
        spec = controller.spec
        self._spec = spec
        self._controller = controller
        callbacks = (spec.run_config.callbacks or ()) if controller.drivers.rank == 0 else ()
        self._has_callbacks = bool(callbacks)
        self._callbacks = CallbackDispatcher(callbacks, _context_of(spec))
        self._policy = FailurePolicy(spec.run_config.failure_config or FailureConfig())
        self._keeper = _keeper_of(spec, controller)
        self._console = RankConsole()
        self._awaiting_commit: dict[Checkpoint, list[dict[str, Any]]] = {}  # Any: whatever JSON can hold
        self._committed_early: set[Checkpoint] = set()
        # Without callbacks a report goes straight to its keeper: a call less for each.
        is_watched = self._has_callbacks or controller.traits.isolates_workers
        self._take_report = self._on_report if is_watched else self._keeper.on_report
        self._take_commit = self._on_commit if self._has_callbacks else self._keeper.on_commit

    def execute(self) -> Result:
        """Run attempts until one finishes.

        Raises:
            TrainingFailedError: the last attempt's error; for an exception of the train function, an instance of its
                class too.
        """
        with self._keeper:
            attempt = self._run_attempts()
        values = [attempt.return_values.get(rank) for rank in range(len(attempt.return_values))]
        kept = self._keeper.kept()
        return Result(
            metrics=kept.metrics,
            checkpoint=kept.checkpoint,
            path=kept.path,
            best_checkpoints=kept.best_checkpoints,
            return_value=values[0] if values else None,
            return_values=values,
            _storage_filesystem=kept.filesystem,
        )

    def _run_attempts(self) -> Attempt:
        before = self._controller.attempts_before
        cause = f"restart {before} of the job" if before else "start"
        while True:
            plan = self._keeper.begin_attempt(cause)
            worker = TrainWorker.of(self._spec, self._controller.traits, plan.checkpoints)
            attempt = Attempt(plan.number, self._take_report, self._take_commit, self._take_log)
            with contextlib.closing(worker):
                outcome = self._controller.run_attempt(worker, attempt.take)
            if outcome.ending is Ending.ENDED and not attempt.failures:
                return attempt
            self._awaiting_commit.clear()
            if outcome.ending is Ending.RESIZED:
                self._keeper.require_current(attempt.number)
                cause = "the number of workers changes"
                continue
            decision = self._policy.decide(outcome, attempt)
            error = error_of(outcome, attempt, decision, self._spec.name)
            if self._has_callbacks:
                told = isinstance(error, PreemptionError) or not attempt.failures
                self._callbacks.after_exception(
                    dict.fromkeys(attempt.failures or {0}, error) if told else attempt.failures
                )
            if not decision.retry or not self._controller.traits.restartable:
                raise error
            self._keeper.require_current(attempt.number)
            self._announce_retry(error, decision)
            time.sleep(decision.wait_s)
            cause = f"{type(error).__name__}: {text_of(error)}"

    def _on_report(self, metrics: list[dict[str, Any]], saved: Saved | None) -> None:
        """Keep it, and tell the callbacks; one whose checkpoint is on its way is told of once that is committed."""
        self._keeper.on_report(metrics, saved)
        if self._controller.traits.isolates_workers and logger.isEnabledFor(logging.INFO):  # else the worker logs it
            logger.info("reported %s%s", metrics[0], "" if saved is None else f" with {saved.checkpoint.path}")
        if not self._has_callbacks:
            return
        if saved is None or saved.is_committed:
            self._callbacks.after_report(metrics, None if saved is None else saved.checkpoint)
        elif saved.checkpoint in self._committed_early:
            self._committed_early.discard(saved.checkpoint)
            self._callbacks.after_report(metrics, saved.checkpoint)
        else:
            self._awaiting_commit[saved.checkpoint] = metrics

    def _take_log(self, rank: int, data: bytes) -> None:
        self._keeper.on_log(rank, data)
        self._console.show(rank, data)

    def _on_commit(self, saved: Saved) -> None:
        self._keeper.on_commit(saved)
        metrics = self._awaiting_commit.pop(saved.checkpoint, None)
        if metrics is None:
            self._committed_early.add(saved.checkpoint)  # its report is about to come, and is called back then
        else:
            self._callbacks.after_report(metrics, saved.checkpoint)

    def _announce_retry(self, error: TrainingFailedError, decision: Decision) -> None:
        newest = self._keeper.newest()
        logger.warning(
            "run %r failed: %s: %s (%s); it starts again %s, from %s%s",
            self._spec.name,
            type(error).__name__,
            text_of(error),
            decision.count,
            f"in {decision.wait_s:g} s" if decision.wait_s else "now",
            "its beginning" if newest is None else newest.path,
            "; this looks deterministic: the same exception at the same line as before" * decision.looks_deterministic,
        )


def _keeper_of(spec: RunSpec, controller: Controller) -> Keeper:
    if spec.run_config.storage_path is None:
        return MemoryKeeper(spec.resume_from_checkpoint, first_attempt=controller.attempts_before)
    from turnout.runtime.shared import SharedKeeper  # the storage room is for runs with storage
    from turnout.runtime.stored import StorageKeeper

    if controller.traits.runs_driver_per_rank:
        return SharedKeeper(controller.drivers, lambda: StorageKeeper(spec, controller), spec.validation_config)
    return StorageKeeper(spec, controller)


def _context_of(spec: RunSpec) -> TrainRunContext:
    return TrainRunContext(
        run_id=spec.run_id,
        run_config=spec.run_config,
        train_loop_config=spec.train_loop_config,
        scaling_config=spec.scaling_config,
        backend_config=spec.backend_config,
        dataset_config=spec.dataset_config,
    )
