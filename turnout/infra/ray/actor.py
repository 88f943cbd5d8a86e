"""`GroupActor`: the process of one worker on a Ray cluster, whose methods run on its main thread, one after another."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from turnout.controllers.travel import loads, packed_error, traceback_text
from turnout.errors import UsageError
from turnout.infra.calls import ENDED, plain_function
from turnout.infra.classes import new_instance
from turnout.infra.collect import Collecting, Reply, passed
from turnout.infra.device_mesh import DeviceMesh
from turnout.infra.dispatch import Cutting
from turnout.infra.handles import LONGEST
from turnout.infra.remote_errors import users_traceback
from turnout.infra.rows import is_namedtuple, num_rows, size_of
from turnout.infra.seeds import seed_everything
from turnout.infra.world import World, enter_world

__all__ = ["STACK_SIGNAL", "GroupActor", "Hello", "Launch", "Slot", "Sources", "WorkerFailed"]

STACK_SIGNAL = signal.SIGRTMIN + 11 if sys.platform == "linux" else signal.SIGIO
_STORED_FROM = 64 * 1024  # bytes from which a result stays with its worker until someone fetches it
# Below the ports that Linux gives to connections (32768 on), so that none takes it meanwhile, and above Ray's own.
_PORTS = range(20_000, 32_000)


class Hello(NamedTuple):
    """What a new process says of itself.

    Args:
        node_id: as Ray names it.
        address: of the node.
        pid: its process.
        stacks: the descriptor to which it writes its stacks when it gets `STACK_SIGNAL`.
        port: that is free on its node.
    """

    node_id: str
    address: str
    pid: int
    stacks: int
    port: int


class Launch(NamedTuple):
    """What all workers of one object begin with.

    Args:
        world: makes the worker's world of its rank.
        made: class, positional arguments and arguments by keyword, pickled.
        mesh: of the object.
        variables: of all.
        path: of the driver, for modules that are not installed.
        directory: of the driver.
        full_determinism: as in `initialize`.
    """

    world: Callable[[int], World]
    made: bytes
    mesh: DeviceMesh
    variables: dict[str, str]
    path: list[str]
    directory: str
    full_determinism: bool


class Slot(NamedTuple):
    """In the place of an argument that another call computes.

    Args:
        source: of it.
        name: of the argument, if it is cut; None if it goes whole.
    """

    source: int
    name: str | None


class Sources(NamedTuple):
    """What slots are filled from.

    Args:
        collectings: how each source's replies are put together, pickled.
        sizes: how many replies each has, of those that come after one another.
        cutting: this worker's part; None if nothing is cut.
        total: rows of the arguments that are here already, and the name of one; None without such.
    """

    collectings: tuple[bytes, ...]
    sizes: tuple[int, ...]
    cutting: Cutting | None
    total: tuple[int, str] | None


class WorkerFailed(Exception):
    """What a method has raised, on its way to the driver.

    Args:
        error: it, packed.
        origin: rank, node, process and traceback.
        at: when.
    """

    def __init__(self, error: bytes, origin: tuple[Any, ...], at: float) -> None:
        super().__init__(error, origin, at)
        self.error = error
        self.origin = origin
        self.at = at

    def __str__(self) -> str:
        return str(self.origin[5]).rpartition("\n")[2]


class GroupActor:
    """One worker of one object."""

    def __init__(self) -> None:
        self._instance: Any = None
        self._functions: dict[str, Callable[..., Any]] = {}
        self._iterators: dict[str, Iterator[Any]] = {}
        self._messages: list[str] = []
        self._label = ""
        self._group = ""
        self._rank = 0
        # Where the kernel has no such files, nobody can read it, and a stack is not shown.
        is_readable = hasattr(os, "memfd_create")
        self._stacks = os.memfd_create("turnout-stacks") if is_readable else os.open(os.devnull, os.O_WRONLY)
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=True, chain=False)

    def hello(self) -> Hello:
        """Who this is."""
        import ray

        context = ray.get_runtime_context()
        address = ray.util.get_node_ip_address()
        return Hello(context.get_node_id(), address, os.getpid(), self._stacks, _free_port())

    def build(
        self, launch: Launch, group: str, rank: int, variables: dict[str, str], first: Hello, caller: str
    ) -> list[Any]:
        """Make the object.

        Args:
            launch: what all of them begin with.
            group: of the worker.
            rank: of the worker.
            variables: of this one.
            first: the worker of rank 0, where torch's processes meet.
            caller: the driver's line.
        """
        os.environ.update(launch.variables)
        os.environ.update({"MASTER_ADDR": first.address, "MASTER_PORT": str(first.port)})
        os.environ.update(variables)
        with contextlib.suppress(OSError):  # another node may not have it
            os.chdir(launch.directory)
        known = set(sys.path)
        sys.path[:0] = [path for path in launch.path if path not in known and os.path.exists(path)]
        self._group, self._rank = group, rank
        with self._told("__init__", caller):
            world = launch.world(rank)
            enter_world(world)
            self._messages = world.messages
            kind, args, kwargs = loads(launch.made)
            self._label = kind.__name__
            seed = world.seed(rank, launch.mesh)
            if seed is not None:
                seed_everything(seed, full_determinism=launch.full_determinism)
            self._instance = new_instance(kind, kind.__init__, args, kwargs)
        return self._reply(None, None, 0)

    def call(self, wire: list[Any], *replies: Any) -> list[Any]:
        """Run a method.

        Args:
            wire: its name, the driver's line, arguments, those by keyword, rows among them, copies among these, and the
                sources of slots: one argument, as Ray packs each by itself.
            replies: of the sources, one source after another.

        Returns:
            A `Reply`, as a plain list: Ray pickles a tuple, and packs lists and what is in them without.
        """
        name, caller, args, kwargs, num_items, num_copies, sources = wire
        try:
            if sources is not None:
                args, kwargs, num_items, num_copies = _filled(args, kwargs, num_items, num_copies, sources, replies)
            function = self._functions.get(name)
            if function is None:
                function = self._functions[name] = plain_function(type(self._instance), name)
            return self._reply(function(self._instance, *args, **kwargs), num_items, num_copies)
        except (Exception, SystemExit) as error:
            failed = self._failed(error, name, caller)
        raise failed

    def iterate(self, number: str, caller: str) -> None:
        """Begin an iteration over the object; empty for an iterator that is the object itself.

        Args:
            number: it goes by.
            caller: the driver's line.
        """
        with self._told("__iter__", caller):
            has_iter = hasattr(type(self._instance), "__iter__")
            self._iterators[number] = iter(self._instance) if has_iter else self._instance

    def item(self, number: str, caller: str) -> list[Any]:
        """The next item of an iteration, as a `Reply`, which is marked at its end."""
        with self._told("__next__", caller):
            try:
                return self._reply(next(self._iterators[number]), None, 0)
            except StopIteration:
                return list(Reply(None, rows=ENDED))

    def forget(self, number: str) -> None:
        """An iteration is over."""
        self._iterators.pop(number, None)

    def _reply(self, value: Any, num_items: int | None, num_copies: int) -> list[Any]:
        told = list(self._messages)
        self._messages.clear()
        if size_of(value, _STORED_FROM) < _STORED_FROM:
            return [value, num_items, num_copies, num_rows(value), None, told]
        import ray

        return [None, num_items, num_copies, num_rows(value), ray.put(value), told]

    @contextlib.contextmanager
    def _told(self, name: str, caller: str) -> Iterator[None]:
        """Have what is raised go to the driver with all there is to say."""
        try:
            yield
        except (Exception, SystemExit) as error:
            failed = self._failed(error, name, caller)
        else:
            return
        raise failed

    def _failed(self, error: BaseException, name: str, caller: str) -> WorkerFailed:
        import ray

        error.__traceback__ = users_traceback(error)
        origin = (
            f"{self._label or 'the class'}.{name}",
            self._group,
            self._rank,
            ray.util.get_node_ip_address(),
            os.getpid(),
            traceback_text(error),
            caller,
        )
        self._messages.clear()  # the driver tells of this call itself
        return WorkerFailed(packed_error(error), origin, time.time())


def fetched(reply: Reply) -> Reply:
    """A reply with its value here."""
    if reply.stored is None:
        return reply
    import ray

    return reply._replace(value=ray.get(reply.stored), stored=None)


def _filled(
    args: Any, kwargs: Any, num_items: int | None, num_copies: int, sources: Sources, replies: Sequence[list[Any]]
) -> tuple[Any, Any, int | None, int]:
    """Arguments with every slot filled, and the rows that this worker has."""
    parts: list[tuple[Collecting, Sequence[Reply]]] = []
    start = 0
    for collecting, size in zip(sources.collectings, sources.sizes, strict=True):
        parts.append((loads(collecting), [Reply(*each) for each in replies[start : start + size]]))
        start += size
    counts = [num_items, num_copies]
    totals = [sources.total] if sources.total is not None else []

    def fill(value: Any) -> Any:
        if isinstance(value, Slot):
            collecting, own = parts[value.source]
            cutting = sources.cutting if value.name is not None else None
            filled, cut, total = passed(collecting, own, fetched, cutting, value.name or "")
            if cut is not None and total is not None:
                if totals and totals[0][0] != total:
                    raise UsageError(
                        f"arguments with different numbers of rows cannot be cut alike: {totals[0][1]} "
                        f"({totals[0][0]} rows) and {value.name} ({total} rows)"
                    )
                totals.append((total, value.name or ""))
                counts[:] = [cut.stop - cut.start, len(cut.copies)]
            return filled
        if isinstance(value, dict):
            return {key: fill(each) for key, each in value.items()}
        if is_namedtuple(value):
            return type(value)(*map(fill, value))
        if isinstance(value, (list, tuple)) and len(value) <= LONGEST:
            return tuple(map(fill, value)) if isinstance(value, tuple) else list(map(fill, value))
        return value

    return fill(args), fill(kwargs), counts[0], counts[1] or 0


def _free_port() -> int:
    for _ in range(100):
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
        return port
    with socket.create_server(("", 0)) as any_port:
        chosen: int = any_port.getsockname()[1]
        return chosen
