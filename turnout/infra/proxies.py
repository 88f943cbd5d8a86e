"""`Proxy`: what an object of a `remote_class` becomes whose workers are elsewhere."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Iterator
from types import MethodType
from typing import Any

from turnout.checks import check_integer
from turnout.controllers.travel import dumps_by_value, loads
from turnout.errors import UsageError
from turnout.infra.calls import ENDED, REMOTE, Pending
from turnout.infra.collect import Collecting, collected
from turnout.infra.dispatch import Part
from turnout.infra.handles import PLAIN, Handle
from turnout.infra.methods import HANDLE, RemoteMethod, method_of
from turnout.infra.plans import Plan

__all__ = ["become_proxy", "iterate", "plan"]


class _Proxy:
    """Stands for the workers' objects; it has their remote functions, and they have everything else."""

    @property
    def __class__(self) -> type:  # so that isinstance() says what the program has written
        return _handle_of(self).kind

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise AttributeError(f"the class of {self!r} is that of its workers' objects")

    def __getattr__(self, name: str) -> Any:
        handle = _handle_of(self)
        function = getattr(handle.kind, name, None)
        if hasattr(function, REMOTE):
            return MethodType(function, self)  # type: ignore[arg-type]  # it is a function of the class
        if name == "plan":
            return functools.partial(plan, self)
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{handle.kind.__name__!r} object on group {handle.group!r} has no {name}")
        known = ", ".join(each for each in dir(handle.kind) if method_of(handle.kind, each) is not None) or "none"
        raise AttributeError(
            f"{handle.kind.__name__}.{name}: the objects are on the workers of group {handle.group!r}, and this one "
            f"stands for them; it has their remote functions: {known}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        handle = _handle_of(self)
        raise AttributeError(
            f"{handle.kind.__name__}.{name} cannot be set here: the objects are on the workers of group "
            f"{handle.group!r}; give them a remote function that does it"
        )

    def __repr__(self) -> str:
        handle = _handle_of(self)
        return f"<{handle.kind.__name__} on group {handle.group!r}, {handle.workers.size} worker(s)>"

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        handle = _handle_of(self)
        return _proxy_again, (dumps_by_value(handle.kind), *handle.__reduce__()[1][1:])


def become_proxy(instance: Any, handle: Handle) -> None:
    """Turn an object that is being built into a proxy.

    Raises:
        UsageError: its class derives from one that is written in C, whose objects cannot become anything else.
    """
    try:
        object.__setattr__(instance, "__class__", _proxy_class(handle.kind))
    except TypeError as error:
        handle.workers.close()
        raise UsageError(
            f"{handle.kind.__name__} cannot be built on group {handle.group!r}: {error}. Hold what it derives from as "
            "an attribute"
        ) from None
    instance.__dict__.clear()
    instance.__dict__[HANDLE] = handle


_proxy_classes: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()  # a cache


def _proxy_class(kind: type) -> type:
    """The proxy for a class, with those of its special methods that can be called from afar."""
    made = _proxy_classes.get(kind)
    if made is None:
        special: dict[str, Any] = {}
        if hasattr(kind, "__iter__") or hasattr(kind, "__next__"):
            special["__iter__"] = _iter
        if hasattr(kind, "__next__"):
            special["__next__"] = _next
        if hasattr(kind, "__len__"):
            special["__len__"] = _len
        for name in dir(kind):
            if name.startswith("__") and name not in special and method_of(kind, name) is not None:
                special[name] = getattr(kind, name)
        made = _proxy_classes[kind] = type(kind.__name__, (_Proxy,), special)
    return made


def _handle_of(instance: Any) -> Handle:
    handle: Handle = object.__getattribute__(instance, "__dict__")[HANDLE]
    return handle


def _proxy_again(kind: bytes, *parts: Any) -> Any:
    """A proxy of a pickle."""
    workers, mesh, group, lazy_collect, prefetch = parts
    loaded: type = loads(kind)
    proxy: Any = object.__new__(_proxy_class(loaded))
    proxy.__dict__[HANDLE] = Handle(loaded, workers, mesh, group, lazy_collect=lazy_collect, prefetch=prefetch)
    return proxy


def plan(instance: Any, method: str, *args: Any, **kwargs: Any) -> Plan:
    """What a call of a remote function would do, without doing it: who would get which rows, and what would come back.

    Args:
        instance: of a `remote_class`.
        method: its name.
        args: of the call.
        kwargs: of the call.

    Returns:
        The plan; ``print`` shows it.

    Raises:
        UsageError: there is no such remote function, or its arguments cannot be dealt.

    Example:
        >>> print(plan(model, "train_step", batch))  # doctest: +SKIP
    """
    handle = instance.__dict__.get(HANDLE)
    if handle is None or handle is PLAIN:
        raise UsageError(f"plan(): {type(instance).__name__} is no object of a remote_class that the program has built")
    remote = method_of(handle.kind, method)
    if remote is None:
        known = ", ".join(each for each in dir(handle.kind) if method_of(handle.kind, each) is not None) or "none"
        raise UsageError(f"plan(): {handle.kind.__name__} has no remote function {method!r}; it has {known}")
    planned: Plan = handle.plan(remote, args, kwargs)
    return planned


# -- iteration


def iterate(instance: Any, *, prefetch: int | None = None) -> Iterator[Any]:
    """Iterate over an object of a `remote_class`, wherever it is.

    Args:
        instance: of a class with ``__iter__``.
        prefetch: items that its workers are ahead; None takes what `remote_class` says. In this process there is none.
    """
    handle = instance.__dict__.get(HANDLE)
    if not isinstance(handle, Handle) or handle.workers.own_rank is not None:
        return iter(instance)
    if prefetch is None:
        prefetch = handle.prefetch
    check_integer("iterate(): prefetch", prefetch, at_least=0, remedy="takes how many items, from 0 on")
    return _ProxyIterator(handle, prefetch)


def _iter(self: Any) -> Iterator[Any]:
    return iterate(self)


def _next(self: Any) -> Any:
    own = self.__dict__.get("_turnout_iterator")
    if own is None:
        own = self.__dict__["_turnout_iterator"] = _ProxyIterator(_handle_of(self), 0)
    return next(own)


def _len(self: Any) -> int:
    """The steps of an iteration: of the worker that has most."""
    handle = _handle_of(self)
    ranks = range(handle.workers.size)
    pending = handle.workers.submit(self, handle.begun("__len__"), [Part((), {})] * len(ranks), ranks)
    lengths: list[int] = [reply.value for reply in pending.replies(None, None)]
    return max(lengths)


class _ProxyIterator:
    """Iterators on all workers, read step by step: of one worker its item, of several the list of theirs.

    A worker whose iterator has ended has no item in the steps that follow; the iteration ends with the last of them.
    """

    def __init__(self, handle: Handle, prefetch: int) -> None:
        self._handle = handle
        self._prefetch = prefetch
        method = method_of(handle.kind, "__next__") or method_of(handle.kind, "__iter__")
        self._method: RemoteMethod | None = method
        ranks = range(1) if method is not None and method.execute == "first" else range(handle.workers.size)
        self._num_workers = len(ranks)
        self._source = handle.workers.iterator(ranks, handle.begun("__iter__"))
        self._asked: deque[tuple[Pending, list[int]]] = deque()
        self._has_ended = False

    def __iter__(self) -> _ProxyIterator:
        return self

    def __next__(self) -> Any:
        if self._has_ended:
            raise StopIteration
        call = self._handle.begun("__next__")
        while len(self._asked) <= self._prefetch:
            self._asked.append(self._source.step(call))
        pending, ranks = self._asked.popleft()
        pending.call.caller = call.caller
        try:
            replies = pending.replies(None, None)
        except BaseException:
            self._end()
            raise
        have = {rank: reply for rank, reply in zip(ranks, replies, strict=True) if reply.rows != ENDED}
        if not have:
            self._end()
            raise StopIteration
        how = "none" if self._method is None else self._method.collect
        if self._num_workers == 1 and how == "none":
            return have[0].value
        return collected(Collecting(how, tuple(have), self._handle.mesh, False), list(have.values()))

    def _end(self) -> None:
        self._has_ended = True
        self._asked.clear()
        self._source.close()

    def __del__(self) -> None:
        if not getattr(self, "_has_ended", True):
            self._end()
