"""What controllers have in common that serve placed ranks on the thread that called `fit()`, forked or on a cluster."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from turnout.controllers.base import Controller, RunSpec
from turnout.controllers.coordinator import Coordinator
from turnout.controllers.interrupts import signals_handled

__all__ = ["ServedGroup", "ServingController"]

logger = logging.getLogger(__name__)


class ServedGroup(ABC):
    """The ranks of one attempt, or the one process that runs beside them, and the loop that serves them."""

    _coordinator: Coordinator

    def __init__(self) -> None:
        self.was_interrupted = False
        self.was_timed_out = False

    @abstractmethod
    def serve(self, timeout_s: float | None = None) -> None:
        """Carry messages until no rank is left; those that still are after ``timeout_s`` are killed."""

    @abstractmethod
    def abort(self, reason: str, grace_s: float) -> None:
        """End them; from any thread."""

    def tell_stacks(self, then: Callable[[str], None]) -> None:
        """Ask every rank where it is; ``then`` is called with all of it, merged. From any thread."""
        self._coordinator.call_soon(lambda: self._coordinator.tell_stacks(then))

    def _run_loop(self) -> None:
        """Serve until `_is_done`, with the signals that reach this program."""
        with signals_handled(
            on_interrupt=lambda: self._coordinator.call_soon(self._interrupt),
            on_ask=self._coordinator.show_stacks,
            wake_fd=self._coordinator.wake_fd,
        ):
            self._coordinator.serve(self._is_done)

    def _interrupt(self) -> None:
        """Once: stop at the next report, if there are ranks to make one. Twice: kill."""
        is_first, self.was_interrupted = not self.was_interrupted, True
        if is_first and self._has_ranks:
            logger.warning("interrupted: the run stops at its next report; interrupt again to kill it now")
            self._coordinator.stop()
        else:
            self._kill()

    @property
    @abstractmethod
    def _has_ranks(self) -> bool:
        """Whether it is known who is which rank."""

    @abstractmethod
    def _is_done(self) -> bool:
        """Whether there is nothing left to serve."""

    @abstractmethod
    def _kill(self) -> None:
        """Kill every process, now."""


class ServingController(Controller):
    """A controller whose attempts are a `ServedGroup` each.

    Args:
        spec: the run.
    """

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self._group: ServedGroup | None = None
        self._aside: ServedGroup | None = None
        self._ends_aside = False

    def abort(self, reason: str, grace_s: float) -> None:
        """End the attempt: waits are broken, and ranks that do not unwind in time are killed."""
        group = self._group
        if group is not None:
            group.abort(reason, grace_s)

    def tell_stacks(self, then: Callable[[str], None]) -> None:
        """Ask every rank of the attempt where it is; ``then`` is called with all of it, merged. From any thread."""
        group = self._group
        if group is not None:
            group.tell_stacks(then)

    def end_aside(self) -> None:
        """Kill it."""
        self._ends_aside = True
        group = self._aside
        if group is not None:
            group.abort("the run has ended", 0.0)

    def _serve_aside(self, group: ServedGroup, start: Callable[[], None], timeout_s: float | None) -> bool:
        """Start and serve what `run_aside` runs; returns whether it has ended by itself."""
        self._aside = group  # first, as `end_aside` may come in between
        try:
            if self._ends_aside:
                return False
            start()
            group.serve(timeout_s)
        finally:
            self._aside = None
        return not group.was_timed_out and not self._ends_aside
