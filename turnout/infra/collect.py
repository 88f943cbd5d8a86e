"""From what the workers of one call have returned to what the caller gets: a pure function of mesh, policy and results.

Where rows were cut by data rank, workers that are replicas of each other count once, and everything comes back in the
order of the input. What passes from one group to another means the same as its value, but only the rows that a worker
needs are fetched (`passed`).
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from turnout.checks import refused
from turnout.errors import UsageError
from turnout.infra.device_mesh import DeviceMesh
from turnout.infra.dispatch import Cut, Cutting, counts_in, cut_in
from turnout.infra.rows import is_namedtuple, joined, like_mapping, num_rows, taken

__all__ = ["COLLECTS", "Collecting", "Reply", "check_collect", "collected", "passed"]

COLLECTS = ("none", "flatten", "mean", "sum", "first", "last_pp", "last_pp_first")

Collector = Callable[[list[Any], DeviceMesh], Any]
_ONCE = ("flatten", "mean", "sum")  # what counts replicas once


class Reply(NamedTuple):
    """What one worker has returned.

    Args:
        value: of the method; None where it is stored.
        num_items: rows that were cut for it, without copies; None if nothing was cut.
        num_copies: rows that it was given again.
        rows: of the value, if it has any.
        stored: where the value is kept, if it is not here.
        messages: for the notifier, that the worker has on its way.
    """

    value: Any
    num_items: int | None = None
    num_copies: int = 0
    rows: int | None = None
    stored: Any = None
    messages: Sequence[str] = ()


class Collecting(NamedTuple):
    """How the replies of one call become its result.

    Args:
        how: one of `COLLECTS`, or a callable ``(results, device_mesh)``.
        ranks: that reply, in the order of the replies.
        mesh: of their group.
        by_data_rank: whether rows were cut by data rank.
    """

    how: str | Collector
    ranks: tuple[int, ...]
    mesh: DeviceMesh
    by_data_rank: bool

    @property
    def chosen(self) -> list[int]:
        """Which replies count, as places in their list, in the order of the rows."""
        if self.by_data_rank and self.how in _ONCE:
            place_of = {rank: place for place, rank in enumerate(self.ranks)}
            return [place_of[rank] for rank in self.mesh.representatives(self.ranks)]
        if self.how in ("last_pp", "last_pp_first"):
            last = set(self.mesh.get_pp_last_ranks())
            return [place for place, rank in enumerate(self.ranks) if rank in last]
        return list(range(len(self.ranks)))


def check_collect(collect: Any) -> None:  # Any: checked here
    """Refuse what is no way to collect.

    Raises:
        UsageError: it is none.
    """
    if not callable(collect) and collect not in COLLECTS:
        raise refused(
            "remote_function(): collect",
            collect,
            f"takes one of {', '.join(map(repr, COLLECTS))}, or a callable (results, device_mesh)",
        )


def collected(collecting: Collecting, replies: Sequence[Reply]) -> Any:  # Any: the user's own
    """The result of a call.

    Raises:
        UsageError: the results cannot be put together as asked.
    """
    how = collecting.how
    if callable(how):
        return how([reply.value for reply in replies], collecting.mesh)
    chosen = [replies[place] for place in collecting.chosen]
    if how in ("mean", "sum"):
        counted = [reply for reply in chosen if reply.num_items != 0 and reply.value is not None]
        weights = [reply.num_items for reply in counted]
        are_known = all(weight is not None for weight in weights)
        return _reduced(
            [reply.value for reply in counted],
            [float(weight or 0) for weight in weights] if are_known else [1.0] * len(counted),
            is_mean=how == "mean",
        )
    values = [_without_copies(collecting, reply) for reply in chosen]
    if how == "flatten":
        try:
            return joined(values) if values else []
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f'remote_function(collect="flatten"): {error}') from error
    if how in ("first", "last_pp_first"):
        return values[0] if values else None
    return values


def passed(
    collecting: Collecting,
    replies: Sequence[Reply],
    fetched: Callable[[Reply], Reply],
    cutting: Cutting | None,
    name: str,
) -> tuple[Any, Cut | None, int | None]:
    """What one worker gets of another call's result, which is passed to it as an argument.

    Args:
        collecting: of the other call.
        replies: of the other call, with their values stored elsewhere.
        fetched: brings one here.
        cutting: the worker's part of the rows; None if it gets everything.
        name: of the argument.

    Returns:
        The argument, where its rows lie, and how many rows there are in all; the latter two None if it was not cut.
    """
    chosen = [replies[place] for place in collecting.chosen]
    if cutting is not None and collecting.how == "flatten":
        sizes = [_rows_without_copies(reply) for reply in chosen]
        if all(size is not None for size in sizes) and chosen:
            return _rows_of_some(collecting, chosen, [size or 0 for size in sizes], fetched, cutting, name)
    if cutting is not None and collecting.how in ("none", "last_pp"):
        cut = cutting.of(len(chosen), name)
        wanted = [chosen[place] for place in (*range(cut.start, cut.stop), *cut.copies)]
        return [_without_copies(collecting, fetched(reply)) for reply in wanted], cut, len(chosen)
    needed = list(range(len(replies))) if callable(collecting.how) else collecting.chosen
    if collecting.how in ("first", "last_pp_first"):
        needed = needed[:1]
    value = collected(collecting, [fetched(reply) if place in needed else reply for place, reply in enumerate(replies)])
    if cutting is None:
        return value, None, None
    counts = dict(counts_in(name, value))
    if not counts:
        return value, None, None
    if len(set(counts.values())) > 1:
        listed = " and ".join(f"{each} ({count} rows)" for each, count in counts.items())
        raise UsageError(f"an argument with different numbers of rows cannot be cut: {listed}")
    total = next(iter(counts.values()))
    cut = cutting.of(total, name)
    return cut_in(name, value, cut), cut, total


def _rows_of_some(
    collecting: Collecting,
    chosen: Sequence[Reply],
    sizes: Sequence[int],
    fetched: Callable[[Reply], Reply],
    cutting: Cutting,
    name: str,
) -> tuple[Any, Cut, int]:
    """A worker's rows, of those replies alone that hold them."""
    total = sum(sizes)
    cut = cutting.of(total, name)
    pieces = []
    brought: dict[int, Any] = {}
    for first, last in [(cut.start, cut.stop), *((row, row + 1) for row in cut.copies)]:
        start = 0
        for place, size in enumerate(sizes):
            low, high = max(first, start), min(last, start + size)
            if low < high:
                if place not in brought:
                    brought[place] = _without_copies(collecting, fetched(chosen[place]))
                pieces.append(taken(brought[place], low - start, high - start))
            start += size
    if not pieces:
        pieces = [taken(fetched(chosen[0]).value, 0, 0)]
    return (joined(pieces) if len(pieces) > 1 else pieces[0]), cut, total


def _rows_without_copies(reply: Reply) -> int | None:
    if reply.rows is None or not reply.num_copies:
        return reply.rows
    return reply.rows - reply.num_copies if reply.rows == (reply.num_items or 0) + reply.num_copies else None


def _without_copies(collecting: Collecting, reply: Reply) -> Any:
    """A reply's value, without the rows for those that the worker was given again."""
    if not reply.num_copies:
        return reply.value
    rows, num_items = num_rows(reply.value, everywhere=False), reply.num_items or 0
    if rows == num_items + reply.num_copies:
        return taken(reply.value, 0, num_items)
    if collecting.how == "flatten" and rows is not None:
        raise UsageError(
            f'remote_function(uneven="pad", collect="flatten"): a worker was given {num_items} row(s) and '
            f"{reply.num_copies} copies, and returned {rows}, so it is not known which are of copies"
        )
    return reply.value


def _reduced(values: Sequence[Any], weights: Sequence[float], *, is_mean: bool) -> Any:
    """The sum or the mean; what cannot be added up is left as it is, in a list."""
    if not values:
        return None
    first = values[0]
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return like_mapping(first, {key: _of_key(values, weights, key, is_mean) for key in keys})
    if is_namedtuple(first) and all(type(value) is type(first) for value in values):
        return type(first)(*(_reduced(each, weights, is_mean=is_mean) for each in zip(*values, strict=True)))
    if all(isinstance(value, (list, tuple)) and len(value) == len(first) for value in values) and (
        isinstance(first, tuple) or all(_is_number(each) for value in values for each in value)
    ):
        reduced = [_reduced(each, weights, is_mean=is_mean) for each in zip(*values, strict=True)]
        return tuple(reduced) if isinstance(first, tuple) else reduced
    if all(_is_number(value) for value in values):
        if not is_mean:
            return sum(values[1:], start=first)
        total = sum(weights)
        if all(isinstance(value, (bool, int, float)) for value in values):
            return sum(float(value) * weight for value, weight in zip(values, weights, strict=True)) / total
    elif not _are_arrays(values):
        return list(values)
    if not is_mean:
        return sum(values[1:], start=first)
    # Shares, and not weights, as halves of 16 bit would overflow.
    total = sum(weights)
    shares = [value * _like_number(value, weight / total) for value, weight in zip(values, weights, strict=True)]
    return sum(shares[1:], start=shares[0])


def _of_key(values: Sequence[Any], weights: Sequence[float], key: Any, is_mean: bool) -> Any:
    have = [(value[key], weight) for value, weight in zip(values, weights, strict=True) if key in value]
    return _reduced([value for value, _ in have], [weight for _, weight in have], is_mean=is_mean)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number)


def _like_number(value: Any, share: float) -> Any:
    """A share in a type that multiplies with the value's: Decimal and Fraction do not with float."""
    is_of_python = isinstance(value, numbers.Number) and not hasattr(value, "dtype")
    if not is_of_python or isinstance(value, (int, float, complex)):
        return share
    kind: Any = type(value)
    return kind(share)


def _are_arrays(values: Sequence[Any]) -> bool:
    """Whether they are numbers in arrays or tensors of one shape."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    first = values[0]
    if numpy is not None and isinstance(first, (numpy.ndarray, numpy.generic)):
        if not all(isinstance(value, (numpy.ndarray, numpy.generic)) for value in values):
            return False
        return len({value.shape for value in values}) == 1 and all(value.dtype.kind in "biufc" for value in values)
    if torch is not None and isinstance(first, torch.Tensor):
        return all(isinstance(value, torch.Tensor) and value.shape == first.shape for value in values)
    return False
