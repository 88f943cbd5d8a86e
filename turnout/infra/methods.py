"""`remote_function`: what makes a method one that is called on the workers of an object's group."""

from __future__ import annotations

import functools
import inspect
import logging
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast, overload

from turnout.checks import check_choice, check_number, refused
from turnout.errors import UsageError
from turnout.infra.calls import REMOTE
from turnout.infra.collect import Collector, check_collect
from turnout.infra.device_mesh import DeviceMesh
from turnout.infra.dispatch import DISPATCHES, Dispatcher, DispatchPolicy
from turnout.infra.lazy_collect import LazyCollect

__all__ = ["EXECUTES", "HANDLE", "RemoteMethod", "method_of", "remote_function"]

logger = logging.getLogger(__name__)

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

EXECUTES = ("all", "first", "peer")
HANDLE = "_turnout_handle"
"""Where an object keeps what it is called through: in its ``__dict__``."""

Dispatch = str | Mapping[str, str] | Dispatcher
Each = Literal["none", "last_pp"]
One = Literal["flatten", "mean", "sum", "first", "last_pp_first"]


@dataclass(eq=False, slots=True)
class RemoteMethod:
    """A method and how it is called.

    Args:
        function: the method as it was written.
        policy: how arguments are dealt.
        execute: who runs it.
        collect: how the results are put together.
        sync: whether the call waits.
        lazy_collect: whether it returns a `LazyCollect`; None leaves that to the class and to `initialize`.
        timeout_s: for the whole call.
    """

    function: Callable[..., Any]
    policy: DispatchPolicy
    execute: str
    collect: str | Collector
    sync: bool
    lazy_collect: bool | None
    timeout_s: float | None
    _signature: inspect.Signature | None = None
    _names: list[str] = field(default_factory=list)
    _least: int = 0
    _is_marked: bool = False

    @property
    def name(self) -> str:
        """Of the method."""
        return self.function.__name__

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
        """The arguments, bound to the method's own signature, with the names of the positional ones.

        Raises:
            TypeError: they do not fit.
        """
        signature = self._signature
        if signature is None:
            signature = self._signature = inspect.signature(self.function)
            self._take(signature)
        if not kwargs and self._least <= len(args) <= len(self._names):  # most calls, at a tenth of the cost
            return args, kwargs, self._names
        try:
            bound = signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.function.__qualname__}(): {error}") from None
        return bound.args[1:], bound.kwargs, self._names

    def _take(self, signature: inspect.Signature) -> None:
        parameters = list(signature.parameters.values())[1:]
        by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        needs_keywords = any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters)
        self._names = [each.name for each in by_place]
        self._least = len(by_place) + 1 if needs_keywords else sum(each.default is each.empty for each in by_place)

    def takes(self, name: str) -> bool:
        """Whether the method has a parameter of this name of its own."""
        return name in inspect.signature(self.function).parameters

    def settled_policy(self) -> DispatchPolicy:
        """How arguments are dealt, with those that annotations mark; these can be looked up once the module is there.

        Raises:
            UsageError: the annotations contradict each other or the decorator.
        """
        if not self._is_marked:
            self._is_marked = True
            marks = _marks(self.function)
            if marks and isinstance(self.policy.how, str) and self.policy.named is None:
                self.policy = DispatchPolicy.of(marks, self.policy.uneven)
        return self.policy


def method_of(kind: type, name: str) -> RemoteMethod | None:
    """The remote method of a class by this name; None if it has none."""
    return getattr(getattr(kind, name, None), REMOTE, None)


@overload
def remote_function(
    dispatch: Dispatch = ...,
    execute: str = ...,
    collect: Each = ...,
    sync: bool = ...,
    lazy_collect: Literal[True] | None = ...,
    timeout: float | None = ...,
    uneven: str = ...,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], LazyCollect[list[R]]]]: ...
@overload
def remote_function(
    dispatch: Dispatch = ...,
    execute: str = ...,
    *,
    collect: One,
    sync: bool = ...,
    lazy_collect: Literal[True] | None = ...,
    timeout: float | None = ...,
    uneven: str = ...,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], LazyCollect[R]]]: ...
@overload
def remote_function(
    dispatch: Dispatch = ...,
    execute: str = ...,
    *,
    collect: Callable[[list[Any], DeviceMesh], C],
    sync: bool = ...,
    lazy_collect: Literal[True] | None = ...,
    timeout: float | None = ...,
    uneven: str = ...,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], LazyCollect[C]]]: ...
@overload
def remote_function(
    dispatch: Dispatch = ...,
    execute: str = ...,
    collect: Each = ...,
    sync: bool = ...,
    *,
    lazy_collect: Literal[False],
    timeout: float | None = ...,
    uneven: str = ...,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], list[R]]]: ...
@overload
def remote_function(
    dispatch: Dispatch = ...,
    execute: str = ...,
    *,
    collect: One,
    sync: bool = ...,
    lazy_collect: Literal[False],
    timeout: float | None = ...,
    uneven: str = ...,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]: ...
@overload
def remote_function(
    dispatch: Dispatch = ...,
    execute: str = ...,
    *,
    collect: Callable[[list[Any], DeviceMesh], C],
    sync: bool = ...,
    lazy_collect: Literal[False],
    timeout: float | None = ...,
    uneven: str = ...,
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], C]]: ...
def remote_function(
    dispatch: Dispatch = "slice",
    execute: str = "all",
    collect: Any = "none",  # Any: the overloads say what it is
    sync: bool = False,
    lazy_collect: bool | None = None,
    timeout: float | None = None,
    uneven: str = "error",
) -> Any:
    """Make a method of a `remote_class` one that is called on the workers of the object's group.

    Args:
        dispatch: how arguments are dealt: "all" to every worker; "slice" cut by worker, "slice_dp" by data rank, all
            that have rows; a dict from the arguments that are cut, or not, to these; or a callable
            ``(world_size, rank, args, kwargs, device_mesh) -> (args, kwargs)``. With ``Annotated[list[str],
            "slice_dp"]`` as the annotation of some arguments, these alone are cut.
        execute: "all" workers, the "first", or its "peer" of the calling group.
        collect: "none" (a list in rank order), "flatten" (rows in the order of the input), "mean" (weighed by rows),
            "sum", "first", "last_pp" (the list of the last pipeline stage), "last_pp_first", or a callable
            ``(results, device_mesh)``.
        sync: have the call wait for all workers.
        lazy_collect: False has the call wait, and return the result itself.
        timeout: seconds for the whole call; on Ray, as what runs in this process cannot be ended.
        uneven: what becomes of rows that do not divide: "error" refuses a worker without any, "strict" parts that
            differ, "pad" fills up with copies that are dropped again, "allow" deals what there is.

    Raises:
        UsageError: an argument cannot be meant.

    Example:
        >>> class Model:
        ...     @remote_function(dispatch="slice_dp", collect="mean")
        ...     def train_step(self, batch: list[str]) -> dict[str, float]:
        ...         return {"loss": 0.5}
    """
    policy = DispatchPolicy.of(dispatch, uneven)
    check_choice("remote_function(): execute", execute, EXECUTES)
    check_collect(collect)
    if timeout is not None:
        timeout = check_number("remote_function(): timeout", timeout, above=0, unit="seconds")

    def decorate(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Any]:
        _check_function(function, policy)
        method = RemoteMethod(function, policy, execute, collect, sync, lazy_collect, timeout)

        @functools.wraps(function)
        def remote(self: S, *args: P.args, **kwargs: P.kwargs) -> Any:
            handle = getattr(self, "__dict__", {}).get(HANDLE)
            if handle is None or handle.is_plain:
                return function(self, *args, **kwargs)
            return handle.call(method, self, args, kwargs)

        setattr(remote, REMOTE, method)
        return cast("Callable[Concatenate[S, P], Any]", remote)

    return decorate


def _check_function(function: Any, policy: DispatchPolicy) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise refused("@remote_function", name, "takes a method as it is written in its class, and is the outermost")
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise UsageError(
            f"@remote_function on {name}: a generator or a coroutine cannot travel; return a list, or give the class "
            "__iter__ and iterate over the object"
        )
    parameters = inspect.signature(function).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    unknown = [each for each in policy.named or () if each not in parameters]
    if unknown and not takes_any:
        raise UsageError(
            f"@remote_function on {name}: dispatch names {', '.join(map(repr, unknown))}, and the method takes "
            f"{', '.join(list(parameters)[1:]) or 'nothing'}"
        )


def _marks(function: Callable[..., Any]) -> dict[str, str]:
    """The arguments whose annotation says how they are dealt."""
    marks: dict[str, str] = {}
    for name, written in getattr(function, "__annotations__", {}).items():
        annotation = written
        if isinstance(annotation, str):
            if "Annotated" not in annotation:
                continue
            try:
                annotation = eval(annotation, function.__globals__)
            except Exception as error:  # whatever the text evaluates
                raise UsageError(
                    f"{function.__qualname__}(): the annotation of {name} cannot be read at run time: {error}"
                ) from error
        if typing.get_origin(annotation) is typing.Annotated:
            for mark in annotation.__metadata__:
                if isinstance(mark, str) and mark in DISPATCHES:
                    marks[name] = mark
    return marks
