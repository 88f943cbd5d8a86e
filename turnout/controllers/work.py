"""What a controller sends to the ranks that it places: the work, pickled once, and what they begin with."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

from turnout.controllers.base import RunSpec, Worker
from turnout.controllers.travel import dumps_work
from turnout.controllers.wire import Address
from turnout.session.events import RankInfo

__all__ = ["Launch", "Work", "packed_validation", "packed_work", "working_directory"]


class Work(NamedTuple):
    """What a rank runs.

    Args:
        run: is called with the channel, and with the rank's share of the launch, if there are shares.
        function: the train function's own, if it is one.
    """

    run: Callable[..., None]
    function: Any  # mypy takes a function in a class for a method


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the ranks of one attempt begin with.

    Args:
        ranks: who they are.
        address: of the coordinator.
        work: the `Work` of each, pickled.
        environment: variables, but for those of each rank.
        directory: to work in.
        arguments: for ``sys.argv``.
        path: for ``sys.path``.
        gpus: that each rank sees, as its node names them.
        shares: what each rank's work is called with beside the channel; none if it is called with that alone.
    """

    ranks: list[RankInfo]
    address: Address
    work: bytes
    environment: dict[str, str]
    directory: str
    arguments: list[str]
    path: list[str]
    gpus: Sequence[Sequence[str]] = ()
    shares: Sequence[Any] = ()  # Any: means something to the work alone


def packed_work(worker: Worker, spec: RunSpec) -> bytes:
    """The work of every rank of a run.

    Raises:
        UsageError: it cannot be pickled; the text names the variable at fault.
    """
    return dumps_work(Work(worker, _function_of(spec.train_fn)), lambda: _parts(spec))


def packed_validation(worker: Worker, spec: RunSpec) -> bytes:
    """The work of a process that validates a checkpoint of a run.

    Raises:
        UsageError: it cannot be pickled; the text names the variable at fault.
    """
    function = spec.validation_config.fn if spec.validation_config is not None else None
    return dumps_work(Work(worker, _function_of(function)), lambda: _parts(spec))


def working_directory() -> str:
    """The driver's folder, also if it was removed meanwhile."""
    try:
        return os.getcwd()
    except FileNotFoundError:  # the kernel still leads there
        return f"/proc/{os.getpid()}/cwd"


def _function_of(called: Any) -> FunctionType | None:  # Any: whatever can be called
    function = getattr(called, "function", called)
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if isinstance(function, FunctionType) else None


def _parts(spec: RunSpec) -> Iterator[tuple[str, Any]]:  # Any: the user's own
    yield "the train function", getattr(spec.train_fn, "function", spec.train_fn)
    yield "train_loop_config", spec.train_loop_config
    yield from ((f"datasets[{name!r}]", dataset) for name, dataset in spec.datasets.items())
    yield "backend_config", spec.backend_config
    yield "validation_config", spec.validation_config
