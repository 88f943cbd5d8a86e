"""What may stand as a train function, and how it is called."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnout.errors import UsageError

__all__ = ["BoundTrainFn", "bind"]

logger = logging.getLogger(__name__)

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class BoundTrainFn:
    """A train function with its configuration; it is called without arguments, once per attempt.

    Args:
        function: the user's.
        takes_config: whether it is called with the configuration.
        config: what the user passed as ``train_loop_config``.
    """

    function: Callable[..., Any]  # Any: the user's own return value
    takes_config: bool
    config: Any = None  # Any: the user's own

    @property
    def name(self) -> str:
        """The function's, for people to read."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)

    def __call__(self) -> Any:  # Any: the user's own return value
        """Call the function; what it changes in its configuration does not outlive the call, as on another process."""
        value = self.function(_copied(self.config)) if self.takes_config else self.function()
        if inspect.iscoroutine(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
            if inspect.iscoroutine(value):
                value.close()
            raise UsageError(
                f"the train function {self.name} returned a {type(value).__name__}, which nobody runs: nothing was "
                "trained. Run it inside of the function, for example with asyncio.run"
            )
        return value


def bind(function: Any, config: Any) -> BoundTrainFn:  # Any: it is what this function checks
    """Check a train function and bind its configuration.

    Raises:
        UsageError: it is no function of no argument or one; the text names it.
    """
    name = getattr(function, "__qualname__", None) or repr(function)
    if not callable(function) or inspect.isclass(function):
        raise UsageError(f"train_loop_per_worker={function!r}: takes a function of no argument, or of one: the config")
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    called = plain if inspect.isroutine(plain) else getattr(plain, "__call__", plain)  # noqa: B004
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise UsageError(f"train_loop_per_worker={name}: is a coroutine or generator function; a plain one is called")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"train_loop_per_worker={name}: its signature cannot be read; wrap it in a function"
        ) from error
    required = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    first = next((each for each in parameters if each.kind in (*_POSITIONAL, inspect.Parameter.VAR_POSITIONAL)), None)
    if len(required) > 1 or (required and (first is None or first.name != required[0])):
        raise UsageError(
            f"train_loop_per_worker={name}: requires the arguments {', '.join(required)}; it is called with none, or "
            "with one: the config. Put them into train_loop_config, or bind them with functools.partial"
        )
    if required:
        return BoundTrainFn(function, True, {} if config is None else config)
    if config is not None and first is None:
        logger.warning("train_loop_config is not used: %s takes no argument", name)
        return BoundTrainFn(function, False)
    return BoundTrainFn(function, config is not None, config)


def _copied(config: Any) -> Any:
    """A copy of nested dicts and lists; what they hold is shared."""
    if isinstance(config, dict):
        own = copy.copy(config)
        for key, value in config.items():
            own[key] = _copied(value)
        return own
    if type(config) is list:
        return [_copied(value) for value in config]
    return copy.copy(config) if type(config) is set else config
