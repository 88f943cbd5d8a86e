"""What has rows: lists, tuples, arrays, tensors, tables and data sets, counted, cut and put together again.

Neither numpy, torch nor pyarrow is imported for it: what is one of theirs is only there if its package is loaded.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Rows", "is_namedtuple", "joined", "like_mapping", "num_rows", "rows_of", "size_of", "taken"]

_LEAST = 32  # bytes that a value takes, about
_DEEPEST = 16  # levels that are counted


class Rows(NamedTuple):
    """How one kind of thing with rows is dealt with.

    Args:
        kind: its name.
        count: its rows.
        cut: the rows from start to stop, and so many copies of the row that is named last, if any.
        join: several, one after another; None where a kind cannot be joined.
    """

    kind: str
    count: Callable[[Any], int]
    cut: Callable[[Any, int, int, Sequence[int]], Any]
    join: Callable[[Sequence[Any]], Any] | None


def rows_of(value: Any) -> Rows | None:  # Any: whatever a method is called with
    """How ``value`` is dealt with; None for what has no rows and goes whole."""
    kind = type(value)
    if kind is list or (issubclass(kind, list)):
        return _LIST
    if issubclass(kind, tuple):
        return None if is_namedtuple(value) else _TUPLE
    if issubclass(kind, (str, bytes, bytearray, dict, int, float)) or value is None:
        return None
    if isinstance(value, Mapping):
        return None
    numpy, torch, pyarrow = sys.modules.get("numpy"), sys.modules.get("torch"), sys.modules.get("pyarrow")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _ARRAY if value.ndim else None
    if torch is not None and hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):
        return _TENSOR if value.dim() else None
    if pyarrow is not None and hasattr(pyarrow, "Table") and isinstance(value, pyarrow.Table):
        return _TABLE
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        if callable(getattr(value, "select", None)) and hasattr(value, "column_names"):
            return _SELECTED
        data = sys.modules.get("torch.utils.data")
        if data is not None and isinstance(value, data.Dataset):
            return _SUBSET
    return None


def num_rows(value: Any, *, everywhere: bool = True) -> int | None:
    """The rows of a result that `joined` can put together with others; None if it has none, or parts that differ.

    Args:
        value: a result.
        everywhere: whether all parts of it have to have them.
    """
    rows = rows_of(value)
    if rows is not None:
        if isinstance(value, tuple) and _is_several(value):
            return _agreed(value, everywhere)
        return rows.count(value) if rows.join is not None else None
    if isinstance(value, Mapping):
        return _agreed(value.values(), everywhere)
    return _agreed(value, everywhere) if is_namedtuple(value) else None


def taken(value: Any, start: int, stop: int) -> Any:
    """Some of the rows that `num_rows` has counted."""
    if isinstance(value, Mapping):
        return like_mapping(value, {key: taken(each, start, stop) for key, each in value.items()})
    if is_namedtuple(value):
        return type(value)(*(taken(each, start, stop) for each in value))
    if isinstance(value, tuple) and _is_several(value):
        return tuple(taken(each, start, stop) for each in value)
    rows = rows_of(value)
    return value if rows is None else rows.cut(value, start, stop, ())


def like_mapping(original: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A dict as one of the class of ``original``, where that can be made of a dict."""
    kind: Any = type(original)
    if kind is dict:
        return values
    try:
        return kind(values)
    except TypeError:  # such as a defaultdict, which takes its factory first
        return values


def joined(values: Sequence[Any]) -> Any:
    """Rows of several put one after another; dicts key by key, and tuples of things with rows element by element.

    Raises:
        TypeError: they are not of one kind.
    """
    first = values[0]
    if isinstance(first, Mapping) and all(isinstance(value, Mapping) for value in values):
        keys = list(dict.fromkeys(key for value in values for key in value))
        return like_mapping(first, {key: joined([value[key] for value in values if key in value]) for key in keys})
    if is_namedtuple(first):
        return type(first)(*(joined(each) for each in zip(*values, strict=True)))
    if isinstance(first, tuple) and all(_is_several(each) and len(each) == len(first) for each in values):
        return tuple(joined(each) for each in zip(*values, strict=True))
    rows = rows_of(first)
    if rows is None:
        return list(values)
    if rows.join is None or any(rows_of(value) is not rows for value in values):
        kinds = ", ".join(dict.fromkeys(type(value).__name__ for value in values))
        raise TypeError(f"rows of the kinds {kinds} are not put together")
    return rows.join(values)


def size_of(value: Any, limit: int, depth: int = _DEEPEST) -> int:
    """About how many bytes a value takes; counting ends where ``limit`` is passed, and ``depth`` levels down."""
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return _LEAST
    if kind in (str, bytes, bytearray):
        return len(value) + _LEAST
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes + _LEAST
    if hasattr(value, "iloc") and callable(usage := getattr(value, "memory_usage", None)):  # pandas'
        used = usage()
        return int(used if isinstance(used, int) else used.sum())
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = itertools.chain(value.keys(), value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif isinstance(state := getattr(value, "__dict__", None), dict):
        parts = state.values()
    total = _LEAST
    for each in parts if depth else ():
        total += size_of(each, limit - total, depth - 1)
        if total > limit:
            break
    return total


def is_namedtuple(value: Any) -> bool:
    """Whether it is a tuple whose elements have names, and so no sequence of rows."""
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def _is_several(value: Any) -> bool:
    """Whether a tuple holds several things with rows of their own, and not rows."""
    return bool(value) and all(isinstance(each, Mapping) or rows_of(each) is not None for each in value)


def _agreed(values: Iterable[Any], everywhere: bool) -> int | None:
    counts = {num_rows(each, everywhere=everywhere) for each in values}
    if not everywhere:
        counts.discard(None)
    return counts.pop() if len(counts) == 1 else None


def _cut_sequence(value: Any, start: int, stop: int, copies: Sequence[int]) -> Any:
    part = value[start:stop]
    if not copies:
        return part
    more = [value[index] for index in copies]
    return part + (tuple(more) if isinstance(value, tuple) else more)


def _cut_array(value: Any, start: int, stop: int, copies: Sequence[int]) -> Any:
    part = value[start:stop]
    return part if not copies else _join_arrays([part, value[list(copies)]])


def _cut_tensor(value: Any, start: int, stop: int, copies: Sequence[int]) -> Any:
    part = value[start:stop]
    return part if not copies else _join_tensors([part, value[list(copies)]])


def _cut_table(value: Any, start: int, stop: int, copies: Sequence[int]) -> Any:
    part = value.slice(start, stop - start)
    return part if not copies else _join_tables([part, value.take(list(copies))])


def _join_lists(values: Sequence[Any]) -> Any:
    return [row for value in values for row in value]


def _join_tuples(values: Sequence[Any]) -> Any:
    return tuple(row for value in values for row in value)


def _join_arrays(values: Sequence[Any]) -> Any:
    return sys.modules["numpy"].concatenate(values)


def _join_tensors(values: Sequence[Any]) -> Any:
    return sys.modules["torch"].cat(list(values))


def _join_tables(values: Sequence[Any]) -> Any:
    return sys.modules["pyarrow"].concat_tables(values)


def _cut_selected(value: Any, start: int, stop: int, copies: Sequence[int]) -> Any:
    return value.select([*range(start, stop), *copies])


def _cut_subset(value: Any, start: int, stop: int, copies: Sequence[int]) -> Any:
    return sys.modules["torch.utils.data"].Subset(value, [*range(start, stop), *copies])


_LIST = Rows("list", len, _cut_sequence, _join_lists)
_TUPLE = Rows("tuple", len, _cut_sequence, _join_tuples)
_ARRAY = Rows("array", len, _cut_array, _join_arrays)
_TENSOR = Rows("tensor", len, _cut_tensor, _join_tensors)
_TABLE = Rows("table", lambda table: int(table.num_rows), _cut_table, _join_tables)
_SELECTED = Rows("data set", len, _cut_selected, None)
_SUBSET = Rows("data set", len, _cut_subset, None)
