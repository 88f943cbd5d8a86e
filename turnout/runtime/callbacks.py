"""How callbacks are called: beside the session, and never with the power to end a run."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

from turnout.callback import UserCallback
from turnout.checkpoint import Checkpoint
from turnout.config import TrainRunContext
from turnout.session import outside

__all__ = ["CallbackDispatcher"]

logger = logging.getLogger(__name__)


class CallbackDispatcher:
    """Calls a run's callbacks, in the order in which they were given.

    Args:
        callbacks: the run's.
        context: what they are told of the run.
    """

    def __init__(self, callbacks: Sequence[UserCallback], context: TrainRunContext) -> None:
        self._callbacks = tuple(callbacks)
        self._context = context

    def after_report(self, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None) -> None:
        """Tell them of a report; each gets dicts of its own."""
        for callback in self._callbacks:
            own = copy.deepcopy(metrics)
            self._call(callback, "after_report", lambda c, m: c.after_report(self._context, m, checkpoint), own)

    def after_exception(self, exceptions: dict[int, Exception]) -> None:
        """Tell them of a failed attempt."""
        for callback in self._callbacks:
            own: dict[int, BaseException] = dict(exceptions)
            self._call(callback, "after_exception", lambda c, e: c.after_exception(self._context, e), own)

    def _call(
        self, callback: UserCallback, hook: str, call: Callable[[UserCallback, Any], None], argument: Any
    ) -> None:
        try:
            with outside():
                call(callback, argument)
        except Exception:
            logger.exception("the callback %r raised in %s; the run goes on without it", callback, hook)
