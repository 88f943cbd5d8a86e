"""What a run keeps, and where: the part of the runtime that differs between runs in memory and runs with storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from turnout.checkpoint import Checkpoint
from turnout.session.checkpoints import Checkpoints, InMemoryCheckpoints
from turnout.session.collective import Collective
from turnout.session.events import Saved
from turnout.session.outbox import Outbox

__all__ = ["AttemptPlan", "Keeper", "Kept", "MakeCheckpoints", "MemoryKeeper"]

MakeCheckpoints: TypeAlias = Callable[[Collective, Outbox], Checkpoints]
"""Makes the part of a worker's session that keeps checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """What an attempt begins with.

    Args:
        number: the attempt's, never used twice in a run.
        checkpoints: for its workers.
    """

    number: int
    checkpoints: MakeCheckpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a `Result` is told of a run's end; None or empty for what the run does not keep.

    Args:
        metrics: rank 0's last.
        checkpoint: the newest.
        path: the run's folder.
        filesystem: that the folder lies on; None for the local disk.
        best_checkpoints: those that are kept, worst first.
    """

    metrics: dict[str, Any] | None  # Any: a metric is whatever JSON can hold
    checkpoint: Checkpoint | None
    path: str | None = None
    filesystem: Any = None  # Any: pyarrow has no types
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] | None = None


class Keeper(Protocol):
    """Keeps what one `fit()` reports. It is a context manager around all attempts."""

    def __enter__(self) -> Self:
        """Take hold of the run."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of the run, and keep how it ended."""

    def begin_attempt(self, cause: str) -> AttemptPlan:
        """Begin an attempt, because of ``cause``."""

    def on_report(self, metrics: list[dict[str, Any]], saved: Saved | None) -> None:
        """A report was made by all ranks."""

    def on_commit(self, saved: Saved) -> None:
        """A checkpoint was committed in the background."""

    def on_log(self, rank: int, data: bytes) -> None:
        """A rank has printed something."""

    def require_current(self, attempt: int) -> None:
        """Raise a `TrainingFailedError` if another driver has gone on with the run."""

    def newest(self) -> Checkpoint | None:
        """What the next attempt would go on from."""

    def kept(self) -> Kept:
        """What the run has come to."""


class MemoryKeeper:
    """Remembers the last metrics and checkpoint of a run without storage.

    Args:
        resume_from: what `get_checkpoint` gives until something is reported.
        first_attempt: the number of the first.
    """

    def __init__(self, resume_from: Checkpoint | None, first_attempt: int = 0) -> None:
        self._checkpoints = InMemoryCheckpoints(resume_from)
        self._metrics: dict[str, Any] | None = None
        self._checkpoint: Checkpoint | None = None
        self._next_attempt = first_attempt

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def begin_attempt(self, cause: str) -> AttemptPlan:
        """Count it; its workers see what the one before has reported."""
        number = self._next_attempt
        self._next_attempt += 1
        return AttemptPlan(number=number, checkpoints=lambda collective, outbox: self._checkpoints)

    def on_report(self, metrics: list[dict[str, Any]], saved: Saved | None) -> None:
        """Remember rank 0's."""
        self._metrics = metrics[0]
        if saved is not None:
            self._checkpoint = saved.checkpoint

    def on_commit(self, saved: Saved) -> None:
        """In memory nothing is committed later."""

    def on_log(self, rank: int, data: bytes) -> None:
        """It is on the console."""

    def require_current(self, attempt: int) -> None:
        """There is no other driver."""

    def newest(self) -> Checkpoint | None:
        """The last reported, or what the run was told to start from."""
        return self._checkpoints.latest()

    def kept(self) -> Kept:
        """The last of each."""
        return Kept(metrics=self._metrics, checkpoint=self._checkpoint)
