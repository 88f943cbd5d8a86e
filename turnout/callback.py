"""`UserCallback`: what a user derives from to be told of every report and every failed attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.checkpoint import Checkpoint
    from turnout.config import TrainRunContext

__all__ = ["UserCallback"]


class UserCallback:
    """Told of a run by the driver, on every track; hand instances to ``RunConfig(callbacks=[...])``.

    A callback that raises is logged with its traceback and never ends the run. It runs in the driver, beside the
    train function and not inside it: `turnout.report` and its kin are not for it.

    Example:
        >>> class Printer(UserCallback):
        ...     def after_report(self, run_context, metrics, checkpoint):
        ...         print(metrics[0])
    """

    def after_report(
        self,
        run_context: TrainRunContext,
        metrics: list[dict[str, Any]],  # Any: a metric is whatever JSON can hold
        checkpoint: Checkpoint | None,
    ) -> None:
        """Called after every report.

        Args:
            run_context: the run and its configuration.
            metrics: what each rank reported; the index is the world rank.
            checkpoint: the checkpoint that the report carried, if any.
        """

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, BaseException]) -> None:
        """Called once after every attempt that failed, before a retry.

        Args:
            run_context: the run and its configuration.
            worker_exceptions: the exception of each rank that failed, by world rank.
        """
