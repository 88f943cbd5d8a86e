"""`ProgressLogger`: a line on the terminal for every report, in columns."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from turnout.callback import UserCallback
from turnout.checkpoint import Checkpoint
from turnout.checks import check_integer, refused
from turnout.config import TrainRunContext

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ProgressLogger"]

_WIDTH = 10


class ProgressLogger(UserCallback):
    """Prints rank 0's metrics, the checkpoint's name and the seconds since the run began, one line a report.

    Args:
        columns: the metrics to show, in order; None shows those of the first report.
        every: show one report in so many.
        console: where to print; None prints to standard output.

    Example:
        >>> from turnout import RunConfig
        >>> run_config = RunConfig(callbacks=[ProgressLogger(columns=["epoch", "loss"])])
    """

    def __init__(self, *, columns: list[str] | None = None, every: int = 1, console: Console | None = None) -> None:
        from rich.console import Console

        if columns is not None and (
            not isinstance(columns, list) or not all(isinstance(each, str) for each in columns)
        ):
            raise refused("ProgressLogger.columns", columns, 'takes a list of metric names, such as ["loss"]')
        self._columns = columns
        self._every = check_integer("ProgressLogger.every", every, at_least=1, remedy="takes a whole number of reports")
        self._console = console or Console(highlight=False)
        self._started = time.monotonic()
        self._count = 0

    def after_report(
        self,
        run_context: TrainRunContext,
        metrics: list[dict[str, Any]],  # Any: a metric is whatever JSON can hold
        checkpoint: Checkpoint | None,
    ) -> None:
        """Print a line, after a heading the first time."""
        if self._count == 0:
            self._columns = self._columns or [name for name, value in metrics[0].items() if not isinstance(value, dict)]
            heading = " ".join(f"{name:>{_WIDTH}}" for name in [*self._columns, "seconds"])
            self._console.print(heading + "  checkpoint", style="bold", markup=False)
        if self._count % self._every == 0:
            cells = [metrics[0].get(name, "") for name in self._columns or ()]
            line = " ".join(f"{_cell(value):>{_WIDTH}}" for value in [*cells, time.monotonic() - self._started])
            saved = "" if checkpoint is None else f"  {os.path.basename(checkpoint.path)}"
            self._console.print(line + saved, markup=False)
        self._count += 1

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, BaseException]) -> None:
        """Print the first cause."""
        for rank, error in worker_exceptions.items():
            self._console.print(f"rank {rank} failed: {type(error).__name__}: {error}", style="bold red", markup=False)
            return


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
