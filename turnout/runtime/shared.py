"""`SharedKeeper`: a stored run whose every rank runs the driver program; rank 0 keeps it, and tells the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from turnout.checkpoint import Checkpoint
from turnout.config import ValidationConfig
from turnout.errors import WorkerGroupError
from turnout.runtime.keeping import AttemptPlan, Keeper, Kept
from turnout.session.collective import Collective
from turnout.session.events import Saved
from turnout.session.stored_checkpoints import StoredPlan

__all__ = ["SharedKeeper"]

T = TypeVar("T")


class SharedKeeper:
    """Does what the keeper of rank 0 does, on all ranks: what that returns they return, what it raises they raise.

    Args:
        drivers: where the driver programs of all ranks meet.
        make: makes rank 0's keeper.
        validation_config: the run's, which need not pickle.
    """

    def __init__(
        self, drivers: Collective, make: Callable[[], Keeper], validation_config: ValidationConfig | None
    ) -> None:
        self._drivers = drivers
        self._validation_config = validation_config
        self._keeper: Keeper | None = None
        self._kept: Kept | None = None

        def begin() -> None:
            self._keeper = make()

        self._led("the run's storage", begin)

    def __enter__(self) -> Self:
        self._led("the run's lease", lambda: self._own.__enter__() and None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Rank 0 lets go of the run; the others wait for it, as torchrun ends all once one process has failed."""

        def end() -> Kept | None:
            self._own.__exit__(kind, error, traceback)
            return self._own.kept() if error is None else None

        try:
            self._kept = self._led("the run's end", end)
        except WorkerGroupError:
            if error is None:
                raise

    def begin_attempt(self, cause: str) -> AttemptPlan:
        """Begin an attempt, because of ``cause``."""
        own: list[AttemptPlan] = []

        def begin() -> tuple[int, StoredPlan]:
            own.append(self._own.begin_attempt(cause))
            plan = own[0].checkpoints
            assert isinstance(plan, StoredPlan), "a run that is shared is stored"
            return own[0].number, dataclasses.replace(plan, uploads=None, validation_config=None)

        number, plan = self._led("the attempt's plan", begin)
        if own:
            return own[0]
        return AttemptPlan(
            number=number, checkpoints=dataclasses.replace(plan, validation_config=self._validation_config)
        )

    def on_report(self, metrics: list[dict[str, Any]], saved: Saved | None) -> None:
        """Reports come to rank 0 alone."""
        self._own.on_report(metrics, saved)

    def on_commit(self, saved: Saved) -> None:
        """Commits are told of on rank 0 alone."""
        self._own.on_commit(saved)

    def on_log(self, rank: int, data: bytes) -> None:
        """What a rank prints goes to its own streams."""

    def require_current(self, attempt: int) -> None:
        """There is no other attempt of this driver's."""

    def newest(self) -> Checkpoint | None:
        """There is no other attempt of this driver's."""
        return None

    def kept(self) -> Kept:
        """What the run has come to, the same on every rank."""
        assert self._kept is not None, "asked once the run has ended well"
        return self._kept

    @property
    def _own(self) -> Keeper:
        assert self._keeper is not None, "rank 0 has it"
        return self._keeper

    def _led(self, tag: str, step: Callable[[], T]) -> T:
        """Rank 0 takes a step; all return, or raise, what it did."""
        failure: Exception | None = None
        value: Any = None  # Any: a T, on rank 0 until it is shared
        if self._drivers.rank == 0:
            try:
                value = step()
            except Exception as error:  # told to the others first, who would wait for ever
                failure = error
        value, told = self._drivers.broadcast(tag, (value, failure))
        if failure is not None or told is not None:
            raise failure or told
        return value  # type: ignore[no-any-return]  # it is a T again
