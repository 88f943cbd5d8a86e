"""`Result`: what `fit()` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from turnout.checkpoint import Checkpoint

__all__ = ["Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run ended with.

    Args:
        metrics: rank 0's last reported metrics; None if nothing was reported.
        checkpoint: the last reported checkpoint; None if none was.
        error: what a run that is read back from storage ended with; `fit()` raises instead.
        path: the run's folder; None for a run in memory.
        metrics_dataframe: the history of reports; None for a run in memory, which keeps the last only.
        best_checkpoints: the checkpoints that are kept, with their metrics; None for a run in memory.
        return_value: what the train function returned on rank 0.
        return_values: what it returned on each rank, by rank.
    """

    metrics: dict[str, Any] | None = None  # Any: a metric is whatever JSON can hold
    checkpoint: Checkpoint | None = None
    error: Exception | None = None
    path: str | None = None
    metrics_dataframe: Any = None  # Any: pandas has no types here
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] | None = None
    return_value: Any = None  # Any: the user's own
    return_values: list[Any] = field(default_factory=list)  # Any: the user's own
    _storage_filesystem: Any = field(default=None, repr=False, compare=False)  # Any: pyarrow has no types
