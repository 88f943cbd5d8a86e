"""`Attempt`: what the events of one group of workers add up to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from turnout.errors import WorkerGroupError
from turnout.session.events import Committed, Died, Failed, Finished, Log, Reported, Saved, Started, WorkerEvent

__all__ = ["Attempt", "OnReport"]

OnReport: TypeAlias = Callable[[list[dict[str, Any]], Saved | None], None]
"""Told of each report once all ranks have made it: every rank's metrics, by rank, and the checkpoint if any."""

OnCommit: TypeAlias = Callable[[Saved], None]
"""Told of each checkpoint that was committed in the background, after its report."""

OnLog: TypeAlias = Callable[[int, bytes], None]
"""Told of what a rank has printed."""


class Attempt:
    """Takes the events of one attempt and merges them over its ranks.

    Args:
        number: from 0.
        on_report: told of each merged report, in order.
        on_commit: told of each background commit.
        on_log: told of what ranks print.
    """

    def __init__(self, number: int, on_report: OnReport, on_commit: OnCommit, on_log: OnLog) -> None:
        self.number = number
        self.num_reports = 0
        self.failures: dict[int, Exception] = {}
        """By rank, in the order in which they came: the first is the cause, the others may be consequences."""
        self.places: dict[int, str] = {}
        self.tracebacks: dict[int, str] = {}
        """As text, of ranks whose exceptions have come without their frames."""
        self.return_values: dict[int, Any] = {}  # Any: the user's own
        self._on_report = on_report
        self._on_commit = on_commit
        self._on_log = on_log
        self._world_size = 1
        self._waiting: dict[int, deque[Reported]] = {}

    def take(self, event: WorkerEvent) -> None:
        """Take the next event; a controller calls this from one thread at a time."""
        if type(event) is Reported:  # first, since there are many of these
            if self._world_size == 1:
                self.num_reports += 1
                self._on_report([event.metrics], event.saved)
            else:
                self._merge(event)
            return
        match event:
            case Started(worker=worker):
                self._world_size = worker.ranks.world_size
            case Committed(rank=rank, saved=saved):
                if rank == 0:  # the others say the same
                    self._on_commit(saved)
            case Finished(rank=rank, value=value):
                self.return_values[rank] = value
            case Failed(rank=rank, error=error, place=place, traceback=text):
                self.failures.setdefault(rank, error)
                self.places.setdefault(rank, place)
                if text:
                    self.tracebacks.setdefault(rank, text)
            case Log(rank=rank, data=data):
                self._on_log(rank, data)
            case Died(rank=rank, reason=reason):
                self.failures.setdefault(rank, WorkerGroupError(f"rank {rank} {reason}"))

    def _merge(self, event: Reported) -> None:
        self._waiting.setdefault(event.rank, deque()).append(event)
        if len(self._waiting) < self._world_size or not all(self._waiting.values()):
            return
        reports = [self._waiting[rank].popleft() for rank in range(self._world_size)]
        saved = next((report.saved for report in reports if report.saved is not None), None)
        self.num_reports += 1
        self._on_report([report.metrics for report in reports], saved)
