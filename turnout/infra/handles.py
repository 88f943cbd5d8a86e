"""`Handle`: what an object is called through: its workers, its mesh, and the way from a call to its result."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from turnout.errors import UsageError
from turnout.infra.calls import Call, Workers
from turnout.infra.collect import Collecting
from turnout.infra.device_mesh import DeviceMesh
from turnout.infra.dispatch import Part, dispatched
from turnout.infra.in_process import InPlace, Ready
from turnout.infra.lazy_collect import LazyCollect
from turnout.infra.methods import RemoteMethod
from turnout.infra.plans import Plan
from turnout.infra.remote_errors import caller_line
from turnout.infra.rows import is_namedtuple
from turnout.infra.telling import tell
from turnout.infra.world import current_world

__all__ = ["LONGEST", "PLAIN", "Handle", "has_lazy", "peers_of", "with_values"]

logger = logging.getLogger(__name__)

_DEEPEST = 4  # levels of lists and dicts in which a LazyCollect among the arguments is found
_ATOMS = frozenset((int, float, str, bool, bytes, type(None)))
LONGEST = 1000  # elements of a list that are looked through for one


class _Plain:
    """In the place of a handle: the object is a worker's own, and its methods are what they are."""

    is_plain = True

    def __reduce__(self) -> str:
        return "PLAIN"

    def __deepcopy__(self, memo: dict[int, Any]) -> _Plain:
        return self


PLAIN = _Plain()


class Handle:
    """What an object of a `remote_class` is called through.

    Args:
        kind: its class.
        workers: that run its methods.
        mesh: of them.
        group: that they are of; None in this process.
        lazy_collect: what the class says of its results.
        prefetch: items that iterators are ahead.
    """

    def __init__(
        self,
        kind: type,
        workers: Workers,
        mesh: DeviceMesh,
        group: str | None,
        *,
        lazy_collect: bool | None = None,
        prefetch: int = 0,
    ) -> None:
        self.kind = kind
        self.workers = workers
        self.mesh = mesh
        self.group = group
        self.lazy_collect = lazy_collect
        self.prefetch = prefetch
        self._ranks = tuple(range(workers.size))
        self._in_place = workers if isinstance(workers, InPlace) else None

    @property
    def is_plain(self) -> bool:
        """Whether the object is running one of its methods in this process, and so is the plain object."""
        return self._in_place is not None and self._in_place.num_running > 0

    def label(self, name: str) -> str:
        """Class and method, for people."""
        return f"{self.kind.__name__}.{name}"

    def begun(self, name: str, timeout_s: float | None = None) -> Call:
        """A call of a method, made by the user's line that has led here."""
        return Call(name, self.label(name), self.group, caller_line(), timeout_s)

    def executing(self, execute: str) -> tuple[int, ...]:
        """The workers that run a call.

        Raises:
            UsageError: the sizes of the two groups do not divide.
        """
        if execute == "first":
            return self._ranks[:1]
        if execute == "peer" and self._in_place is None:
            caller = current_world().caller
            if caller.group not in (None, self.group):
                return tuple(peers_of(caller.rank, caller.world_size, self.workers.size))
        return self._ranks

    def call(self, method: RemoteMethod, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method.

        Args:
            method: that is called.
            target: the object.
            args: positional.
            kwargs: by keyword; ``all_ranks`` and ``lazy_collect`` are the call's own, unless the method takes them.

        Returns:
            A `LazyCollect`, or the result itself where that is asked for.
        """
        call = self.begun(method.name, method.timeout_s)
        all_ranks, is_lazy = False, None
        if "all_ranks" in kwargs and not method.takes("all_ranks"):
            all_ranks = bool(kwargs.pop("all_ranks"))
        if "lazy_collect" in kwargs and not method.takes("lazy_collect"):
            is_lazy = bool(kwargs.pop("lazy_collect"))
        args, kwargs, names = method.bound(args, kwargs)
        has_later = has_lazy((args, kwargs))
        try:
            ranks, parts, collecting = self._dealt(method, args, kwargs, names, has_later)
        except Exception as error:
            if not has_later:
                raise
            # Of a result that was passed on: told when this one is read, as where that is computed elsewhere.
            failed = Ready(call, [], error)
            return self._result(method, LazyCollect(failed, Collecting("none", (), self.mesh, False)), is_lazy)
        if method.timeout_s is not None and not self.workers.takes_later:
            _warn_of_timeout(self.label(method.name))
        # No local of this frame: the traceback of an error has the frame, and would keep the result for ever.
        pending = self.workers.submit(target, call, parts, ranks)
        return self._result(method, LazyCollect(pending, collecting, all_ranks=all_ranks), is_lazy)

    def _result(self, method: RemoteMethod, result: LazyCollect[Any], is_lazy: bool | None) -> Any:
        """What the call returns: by what it says itself, the method, the class, and the program."""
        world = current_world()
        said = (is_lazy, method.lazy_collect, self.lazy_collect, world.settings.lazy_collect)
        if not next(each for each in said if each is not None):
            return result()
        if method.sync:
            result()
        else:
            world.results.add(result)
        return result

    def _dealt(
        self, method: RemoteMethod, args: tuple[Any, ...], kwargs: dict[str, Any], names: list[str], has_later: bool
    ) -> tuple[Sequence[int], list[Part], Collecting]:
        """Who runs a call, with what, and how the results are put together."""
        if has_later:
            args, kwargs = with_values((args, kwargs), keep_remote=self.workers.takes_later)
        policy = method.settled_policy()
        ranks: Sequence[int] = self.executing(method.execute)
        own = self.workers.own_rank
        if own is None:
            parts = dispatched(policy, args, kwargs, ranks=ranks, mesh=self.mesh, names=names)
            if has_later:
                for part in parts:
                    part.has_later = True
        elif own not in ranks:
            ranks, parts = (), []
        else:
            if self._in_place is not None and self._in_place.is_whole:
                ranks = (own,)  # whose part all of it is, counted for a mean over all
            place = ranks.index(own)
            parts = dispatched(policy, args, kwargs, ranks=ranks, mesh=self.mesh, names=names, only=place)
            ranks = (own,)
        return ranks, parts, Collecting(method.collect, tuple(ranks), self.mesh, policy.by_data_rank)

    def plan(self, method: RemoteMethod, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """Which worker would get which rows, and what would come back."""
        args, kwargs, names = method.bound(args, kwargs)
        policy = method.settled_policy()
        ranks = self.executing(method.execute)
        parts = dispatched(policy, args, kwargs, ranks=ranks, mesh=self.mesh, names=names)
        collecting = Collecting(method.collect, ranks, self.mesh, policy.by_data_rank)
        return Plan.of(self.label(method.name), self.group, policy, parts, collecting)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__reduce__()[0](*self.__reduce__()[1]) if self._in_place is not None else self

    def __reduce__(self) -> tuple[Any, ...]:
        options = (self.mesh, self.group, self.lazy_collect, self.prefetch)
        # A copy of an object in this process is an object of its own, that is called where it is.
        workers = InPlace() if self._in_place is not None else self.workers
        mesh = DeviceMesh.from_sizes(dp_size=1) if self._in_place is not None else self.mesh
        return _handle, (self.kind, workers, mesh, *options[1:])


def _handle(
    kind: type, workers: Workers, mesh: DeviceMesh, group: str | None, lazy_collect: bool | None, prefetch: int
) -> Handle:
    return Handle(kind, workers, mesh, group, lazy_collect=lazy_collect, prefetch=prefetch)


def peers_of(rank: int, num_callers: int, num_workers: int) -> range:
    """The workers that serve one worker of the calling group: the one of its own number, or a block.

    Raises:
        UsageError: neither size divides the other.
    """
    larger, smaller = max(num_callers, num_workers), min(num_callers, num_workers)
    if larger % smaller:
        raise UsageError(
            f'execute="peer" between {num_callers} and {num_workers} workers: one number must divide the other'
        )
    if num_callers >= num_workers:
        peer = rank // (num_callers // num_workers)
        return range(peer, peer + 1)
    size = num_workers // num_callers
    return range(rank * size, (rank + 1) * size)


def has_lazy(value: Any, depth: int = _DEEPEST) -> bool:
    """Whether a LazyCollect is among the arguments, also in lists and dicts."""
    if isinstance(value, LazyCollect):
        return True
    if depth and isinstance(value, dict):
        return any(has_lazy(each, depth - 1) for each in value.values())
    if depth and isinstance(value, (list, tuple)) and len(value) <= LONGEST:
        return any(has_lazy(each, depth - 1) for each in value if type(each) not in _ATOMS)
    return False


def with_values(value: Any, depth: int = _DEEPEST + 1, *, keep_remote: bool = False) -> Any:
    """The same with every LazyCollect's value in its place.

    Args:
        value: nested lists and dicts.
        depth: levels to go down.
        keep_remote: leave those whose values are elsewhere, as they can be fetched from there.
    """
    if isinstance(value, LazyCollect):
        return value if keep_remote and value.pending.is_remote else value()
    if depth and isinstance(value, dict):
        return {key: with_values(each, depth - 1, keep_remote=keep_remote) for key, each in value.items()}
    if depth and isinstance(value, (list, tuple)) and len(value) <= LONGEST:
        values = [with_values(each, depth - 1, keep_remote=keep_remote) for each in value]
        if is_namedtuple(value):
            return type(value)(*values)
        return tuple(values) if isinstance(value, tuple) else values
    return value


@functools.lru_cache(maxsize=1024)  # once for each method
def _warn_of_timeout(label: str) -> None:
    text = f"{label}: its timeout has no effect in this process, where a call cannot be ended from outside"
    tell(logger, logging.WARNING, text)
