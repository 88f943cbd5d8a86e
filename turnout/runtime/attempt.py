"""`Attempt`: what the events of one group of workers add up to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from turnout.checkpoint import Checkpoint
from turnout.errors import WorkerGroupError
from turnout.session.events import Died, Failed, Finished, Reported, Started, WorkerEvent

__all__ = ["Attempt", "OnReport"]

OnReport: TypeAlias = Callable[[list[dict[str, Any]], Checkpoint | None], None]
"""Told of each report once all ranks have made it: every rank's metrics, by rank, and the checkpoint if any."""


class Attempt:
    """Takes the events of one attempt and merges them over its ranks.

    Args:
        number: from 0.
        on_report: told of each merged report, in order.
    """

    def __init__(self, number: int, on_report: OnReport) -> None:
        self.number = number
        self.num_reports = 0
        self.failures: dict[int, Exception] = {}
        """By rank, in the order in which they came: the first is the cause, the others may be consequences."""
        self.places: dict[int, str] = {}
        self.return_values: dict[int, Any] = {}  # Any: the user's own
        self._on_report = on_report
        self._world_size = 1
        self._waiting: dict[int, deque[Reported]] = {}

    def take(self, event: WorkerEvent) -> None:
        """Take the next event; a controller calls this from one thread at a time."""
        if type(event) is Reported:  # first, since there are many of these
            if self._world_size == 1:
                self.num_reports += 1
                self._on_report([event.metrics], event.checkpoint)
            else:
                self._merge(event)
            return
        match event:
            case Started(worker=worker):
                self._world_size = worker.ranks.world_size
            case Finished(rank=rank, value=value):
                self.return_values[rank] = value
            case Failed(rank=rank, error=error, place=place):
                self.failures[rank] = error
                self.places[rank] = place
            case Died(rank=rank, reason=reason):
                self.failures.setdefault(rank, WorkerGroupError(f"rank {rank} died: {reason}"))

    def _merge(self, event: Reported) -> None:
        self._waiting.setdefault(event.rank, deque()).append(event)
        if len(self._waiting) < self._world_size or not all(self._waiting.values()):
            return
        reports = [self._waiting[rank].popleft() for rank in range(self._world_size)]
        checkpoint = next((report.checkpoint for report in reports if report.checkpoint is not None), None)
        self.num_reports += 1
        self._on_report([report.metrics for report in reports], checkpoint)
