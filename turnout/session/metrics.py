"""From the metrics that a user reports to the same in types that JSON can hold.

Conversion happens where `report` is called, so that a value that cannot be kept is refused there, on its rank and
with its key, and so that no tensor (and no device memory that it holds) outlives the call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from turnout.errors import UsageError

__all__ = ["plain_metrics"]

_PLAIN = frozenset({float, int, str, bool, type(None)})


def plain_metrics(metrics: Any) -> dict[str, Any]:  # Any: it is what this function checks
    """Return a copy of ``metrics`` that shares nothing with it and holds only what JSON can hold.

    Numbers, text, booleans, None, and dicts and lists of them are kept, NaN and infinities too. An array or tensor of
    one element becomes its number, of whatever library. A tuple becomes a list.

    Raises:
        UsageError: it is no dict, a key is no text, or a value is something else; the text names the key.
    """
    if type(metrics) is dict:
        for key, value in metrics.items():  # exact types: the common report takes a fraction of a microsecond
            if type(key) is not str or type(value) not in _PLAIN:
                break
        else:
            return metrics.copy()
    if not isinstance(metrics, Mapping):
        raise UsageError(f'report() takes metrics as a dict such as {{"loss": 0.5}}, not {_described(metrics)}')
    try:
        return _plain_dict(metrics, "")
    except RecursionError as error:
        raise UsageError("report(): the metrics contain themselves, or are nested too deeply") from error


def _plain_dict(metrics: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
    plain = {}
    for key, value in metrics.items():
        if not isinstance(key, str):
            raise UsageError(f"report(): the key {key!r} of the metrics is no text; use {str(key)!r}")
        plain[str(key)] = _plain_value(value, f"{prefix}{key}")
    return plain


def _plain_value(value: Any, name: str) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return _plain_dict(value, f"{name}/")
    if isinstance(value, (list, tuple)):
        return [_plain_value(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, int):  # their subclasses, numpy.float64 and enumerations among them
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and callable(getattr(value, "item", None)) and math.prod(shape) == 1:
        item = value.item()
        if type(item) in _PLAIN:
            return item
    raise UsageError(
        f"report(): the metric {name!r} is {_described(value)}, which JSON cannot hold. "
        "Report a number, text or a list of them; arrays and tensors belong in the checkpoint"
    )


def _described(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    shape = getattr(value, "shape", None)
    return f"{kind} of shape {tuple(shape)}" if isinstance(shape, tuple) else kind
