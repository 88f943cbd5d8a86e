"""From the arguments of one call to those of every worker's: a pure function of mesh, policy and arguments.

`slice` cuts by worker, `slice_dp` by data rank, so that workers which are replicas of each other get the same rows.
What another call has still to compute (`Later`) is not known here: it is left in its place, with the cut that its
worker makes once it is there. Passing a result on means the same as passing its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnout.checks import check_choice, refused
from turnout.errors import UsageError
from turnout.infra.device_mesh import DeviceMesh, balanced
from turnout.infra.rows import is_namedtuple, like_mapping, rows_of

__all__ = [
    "DISPATCHES",
    "UNEVEN",
    "Cut",
    "Cutting",
    "DispatchPolicy",
    "Later",
    "Part",
    "SlicedLater",
    "counts_in",
    "cut_in",
    "dispatched",
]

DISPATCHES = ("all", "slice", "slice_dp")
UNEVEN = ("error", "strict", "pad", "allow")

Dispatcher = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


class Later:
    """A value that is computed elsewhere: a leaf of arguments that is not looked into."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """How arguments are dealt to workers.

    Args:
        how: one of `DISPATCHES`, or a callable ``(world_size, rank, args, kwargs, device_mesh)``.
        named: the arguments that are cut, if they are named; else all that have rows are.
        uneven: what becomes of rows that do not divide.
    """

    how: str | Dispatcher = "slice"
    named: frozenset[str] | None = None
    uneven: str = "error"

    @classmethod
    def of(cls, dispatch: Any, uneven: str) -> DispatchPolicy:  # Any: checked here
        """What the arguments of `remote_function` mean.

        Raises:
            UsageError: they cannot be meant.
        """
        check_choice("remote_function(): uneven", uneven, UNEVEN)
        if callable(dispatch):
            return cls(dispatch, None, uneven)
        if isinstance(dispatch, Mapping):
            for name, how in dispatch.items():
                check_choice(f"remote_function(): dispatch[{name!r}]", how, DISPATCHES)
            cuts = {name: how for name, how in dispatch.items() if how != "all"}
            if len(set(cuts.values())) > 1:
                raise refused(
                    "remote_function(): dispatch", dict(dispatch), 'cuts one call either by "slice" or by "slice_dp"'
                )
            return cls(next(iter(cuts.values()), "all"), frozenset(cuts), uneven)
        if not isinstance(dispatch, str) or dispatch not in DISPATCHES:
            raise refused(
                "remote_function(): dispatch",
                dispatch,
                f"takes one of {', '.join(map(repr, DISPATCHES))}, a dict from arguments to these, or a callable "
                "(world_size, rank, args, kwargs, device_mesh) -> (args, kwargs)",
            )
        return cls(dispatch, None, uneven)

    @property
    def by_data_rank(self) -> bool:
        """Whether workers that are replicas of each other get the same rows."""
        return self.how == "slice_dp"


class Cut(NamedTuple):
    """The rows of one worker.

    Args:
        start: the first.
        stop: where they end.
        copies: rows that are added again, to be as many as everyone's.
    """

    start: int
    stop: int
    copies: tuple[int, ...] = ()


class Cutting(NamedTuple):
    """Which part of the rows is one worker's, however many there turn out to be.

    Args:
        place: of the part.
        num_parts: of all.
        uneven: as in the policy.
        by: "data ranks" or "workers", for people.
    """

    place: int
    num_parts: int
    uneven: str
    by: str

    def of(self, total: int, name: str) -> Cut:
        """The part of ``total`` rows.

        Raises:
            UsageError: there are too few, or they do not divide, and the policy refuses that.
        """
        if self.uneven == "error" and total < self.num_parts:
            raise UsageError(
                f"{name} has {total} row(s) for {self.num_parts} {self.by}, and one without rows would keep the others "
                'waiting in their collectives; pass more, or say remote_function(uneven="pad") or "allow"'
            )
        if self.uneven == "strict" and total % self.num_parts:
            raise UsageError(
                f"{name} has {total} row(s), which {self.num_parts} {self.by} cannot share evenly, as "
                'remote_function(uneven="strict") asks'
            )
        own = balanced(total, self.num_parts, self.place)
        if self.uneven != "pad" or not total:
            if self.uneven == "pad":
                raise UsageError(f'{name} has no row of which remote_function(uneven="pad") could make copies')
            return Cut(own.start, own.stop)
        size = -(-total // self.num_parts)
        last = max(own.stop - 1, 0) if own.stop > own.start else total - 1
        return Cut(own.start, own.stop, (last,) * (size - (own.stop - own.start)))


@dataclass(slots=True)
class Part:
    """What one worker is called with.

    Args:
        args: positional.
        kwargs: by keyword.
        num_items: rows that were cut for it, without copies; None if nothing was cut.
        num_copies: rows that were added again.
        cutting: how what comes later is to be cut; None if it is not.
        total: the rows of all workers, and the name of the argument that says so.
        cut: the rows that were cut for it.
        has_later: whether something in it is computed elsewhere.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    num_items: int | None = None
    num_copies: int = 0
    cutting: Cutting | None = None
    total: tuple[int, str] | None = None
    cut: Cut | None = None
    has_later: bool = False


class SlicedLater(NamedTuple):
    """Stands in a part for what comes later and is to be cut then."""

    later: Any
    name: str


def dispatched(
    policy: DispatchPolicy,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    ranks: Sequence[int],
    mesh: DeviceMesh,
    names: Sequence[str] = (),
    only: int | None = None,
) -> list[Part]:
    """The parts of some workers.

    Args:
        policy: how the arguments are dealt.
        args: of the call.
        kwargs: of the call.
        ranks: the workers, each by its rank in the mesh.
        mesh: of their group.
        names: of the positional arguments, as far as they have one.
        only: the place in ``ranks`` of the one whose part is wanted; None for all.

    Returns:
        One part for each of ``ranks``, in their order, or for the one.

    Raises:
        UsageError: the rows do not fit to the workers, or two arguments have different numbers of them.
    """
    wanted = slice(None) if only is None else slice(only, only + 1)
    if callable(policy.how):
        return [_called(policy.how, args, kwargs, rank, ranks, mesh) for rank in ranks[wanted]]
    if policy.how == "all":
        return [Part(args, dict(kwargs)) for _ in ranks[wanted]]
    cuttings = _cuttings(policy, ranks, mesh)
    named = [names[index] if index < len(names) else f"args[{index}]" for index in range(len(args))]
    counts = dict(_counts(policy, [*zip(named, args, strict=True), *kwargs.items()]))
    if len(set(counts.values())) > 1:
        listed = " and ".join(f"{name} ({count} rows)" for name, count in counts.items())
        raise UsageError(
            f"arguments with different numbers of rows cannot be cut alike: {listed}. Name those that are to be cut: "
            'remote_function(dispatch={"batch": "slice_dp", "settings": "all"})'
        )
    total = next(((count, name) for name, count in counts.items()), None)
    cuts = {cutting: cutting.of(*total) if total is not None else None for cutting in cuttings}
    parts = []
    for cutting in cuttings[wanted]:
        cut = cuts[cutting]
        part = Part(
            tuple(_cut(policy, name, value, cut) for name, value in zip(named, args, strict=True)),
            {name: _cut(policy, name, value, cut) for name, value in kwargs.items()},
            cutting=cutting,
            total=total,
        )
        if cut is not None:
            part.num_items, part.num_copies = cut.stop - cut.start, len(cut.copies)
            part.cut = cut
        parts.append(part)
    return parts


def _called(
    dispatcher: Dispatcher, args: tuple[Any, ...], kwargs: dict[str, Any], rank: int, ranks: Sequence[int], mesh: Any
) -> Part:
    returned = dispatcher(len(ranks), rank, args, dict(kwargs), mesh)
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not is_pair or not isinstance(returned[0], (tuple, list)) or not isinstance(returned[1], dict):
        name = getattr(dispatcher, "__qualname__", repr(dispatcher))
        raise UsageError(f"remote_function(dispatch={name}): it returned {returned!r} and not (args, kwargs)")
    return Part(tuple(returned[0]), dict(returned[1]))


def _cuttings(policy: DispatchPolicy, ranks: Sequence[int], mesh: DeviceMesh) -> list[Cutting]:
    if not policy.by_data_rank:
        return [Cutting(index, len(ranks), policy.uneven, "workers") for index in range(len(ranks))]
    data_ranks = [mesh.get_data_rank_from_global_rank(rank) for rank in ranks]
    place_of = {each: place for place, each in enumerate(sorted({each for each in data_ranks if each is not None}))}
    return [
        Cutting(place_of[each], len(place_of), policy.uneven, "data ranks") for each in data_ranks if each is not None
    ]


def _counts(policy: DispatchPolicy, named: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, int]]:
    for name, value in named:
        if policy.named is None or name in policy.named:
            yield from counts_in(name, value)


def counts_in(name: str, value: Any) -> Iterator[tuple[str, int]]:
    """The rows of everything in an argument that is cut, by what names it."""
    if isinstance(value, Later):
        return
    rows = rows_of(value)
    if rows is not None:
        yield name, rows.count(value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from counts_in(f"{name}[{key!r}]", each)
    elif is_namedtuple(value):
        for key, each in zip(value._fields, value, strict=True):
            yield from counts_in(f"{name}.{key}", each)


def _cut(policy: DispatchPolicy, name: str, value: Any, cut: Cut | None) -> Any:
    return value if policy.named is not None and name not in policy.named else cut_in(name, value, cut)


def cut_in(name: str, value: Any, cut: Cut | None) -> Any:
    """An argument with everything cut in it that has rows; ``cut`` is None where nothing has but what comes later."""
    if isinstance(value, Later):
        return SlicedLater(value, name)
    rows = rows_of(value)
    if rows is not None:
        return value if cut is None else rows.cut(value, cut.start, cut.stop, cut.copies)
    if isinstance(value, Mapping):
        return like_mapping(value, {key: cut_in(f"{name}[{key!r}]", each, cut) for key, each in value.items()})
    if is_namedtuple(value):
        return type(value)(
            *(cut_in(f"{name}.{key}", each, cut) for key, each in zip(value._fields, value, strict=True))
        )
    return value
