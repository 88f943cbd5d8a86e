"""`World`: what `initialize` has set up, for the whole process; the one holder of infra's state."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnout.combined_error import text_of
from turnout.controllers.travel import traceback_text
from turnout.errors import UsageError
from turnout.infra.device_group import DeviceGroup
from turnout.infra.device_mesh import DeviceMesh, data_parallel_mesh
from turnout.infra.notifiers import Notices, Notifier
from turnout.infra.seeds import seed_of
from turnout.infra.telling import tell
from turnout.infra.whoami import Turn, current_turn

if TYPE_CHECKING:
    from turnout.infra.calls import Call, Pending

__all__ = ["Built", "Settings", "World", "current_world", "enter_world", "is_initialized", "leave_world", "notify"]

logger = logging.getLogger(__name__)

_MOST_ABANDONED = 64  # calls that nobody reads and whose end is not known, before they are looked through


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of `initialize`, checked; see there."""

    mode: str = "local"
    nproc_per_node: int = 8
    ncpu_proc_per_node: int = 8
    seed: int | None = None
    full_determinism: bool = False
    groups: tuple[DeviceGroup, ...] | None = None
    global_device_mesh: DeviceMesh | None = None
    lazy_collect: bool = True
    name: str | None = None
    notifier: Notifier | None = None
    simulate: bool = False
    seed_mode: str = "same"
    local_args: str = "global"
    placement_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An object that was built on a group, for the picture of the placement.

    Args:
        class_name: of the object.
        mesh: of it.
        num_workers: that it has.
    """

    class_name: str
    mesh: DeviceMesh
    num_workers: int


class World:
    """What holds in this process from `initialize` to `shutdown`.

    Args:
        settings: of the program.
        groups: with all ranks listed.
        rank: of this process among those that run the same program.
        world_size: how many run it.
        worker_of: the group that this process is a worker of; None for the program itself.
        cluster: where the workers of each group are on Ray; None off it.
    """

    def __init__(
        self,
        settings: Settings,
        groups: Sequence[DeviceGroup],
        *,
        rank: int = 0,
        world_size: int = 1,
        worker_of: str | None = None,
        cluster: Any = None,  # Any: of the Ray rooms, which this one does not import
    ) -> None:
        self.settings = settings
        self.groups = list(groups)
        self.rank = rank
        self.world_size = world_size
        self.worker_of = worker_of
        self.cluster = cluster
        self.built: dict[str, list[Built]] = {}
        self.messages: list[str] = []
        """For the notifier, from a worker, on their way with its next reply."""
        self.results: weakref.WeakSet[Any] = weakref.WeakSet()  # Any: LazyCollect, which stands above this file
        """That may have still to be read."""
        self._notices = Notices(settings.notifier) if settings.notifier is not None else None
        self._abandoned: deque[Pending] = deque()
        self._telling = threading.Lock()
        self._closers = contextlib.ExitStack()

    @property
    def name(self) -> str:
        """Of the run, for people."""
        return self.settings.name or os.path.basename(sys.argv[0] or "python")

    @property
    def has_notifier(self) -> bool:
        """Whether someone is to be told of failures."""
        return self._notices is not None

    @property
    def caller(self) -> Turn:
        """Who is running just now: a worker, or the program itself."""
        return current_turn() or Turn(self.rank, self.worker_of, self.world_size)

    def group(self, name: str) -> DeviceGroup:
        """The group of a name.

        Raises:
            UsageError: there is none; the text names those that there are.
        """
        group = next((group for group in self.groups if group.name == name), None)
        if group is None:
            known = ", ".join(repr(group.name) for group in self.groups) or "none"
            raise UsageError(f"remote_group={name!r}: there is no such group; initialize() was given {known}")
        return group

    def default_mesh(self, num_workers: int) -> DeviceMesh:
        """The mesh of an object that is given none."""
        mesh = self.settings.global_device_mesh
        return mesh if mesh is not None and mesh.world_size == num_workers else data_parallel_mesh(num_workers)

    def seed(self, rank: int, mesh: DeviceMesh) -> int | None:
        """The seed of a worker."""
        if self.settings.seed is None:
            return None
        data_rank = mesh.get_data_rank_from_global_rank(rank)
        return seed_of(self.settings.seed, self.settings.seed_mode, rank, data_rank)

    def note_built(self, group: str, built: Built) -> None:
        """An object was built on a group."""
        known = self.built.setdefault(group, [])
        if built not in known:
            known.append(built)

    # -- failures

    def tell(self, call: Call, error: BaseException) -> None:
        """Tell the notifier of a call that has failed, once."""
        with self._telling:
            is_first, call.was_told = not call.was_told, True
        if is_first and (self._notices is not None or self.worker_of is not None):
            self.notify(_message(self.name, call, error))

    def look_at(self, pending: Pending) -> None:
        """Tell the notifier of a call that has failed, by what its replies say, on the notifier's thread."""
        if self._notices is None:
            return

        def message() -> str | None:
            error = pending.failure()
            with self._telling:
                is_first, pending.call.was_told = not pending.call.was_told, True
            return _message(self.name, pending.call, error) if is_first and error is not None else None

        self._notices.send(message)

    def notify(self, text: str) -> None:
        """Have the notifier told something; in a worker it goes to the driver with the next reply."""
        if self.worker_of is not None:
            self.messages.append(text)
        elif self._notices is not None:
            self._notices.send(text)

    def take_unread(self, pending: Pending) -> None:
        """Nobody will read this call's result: see to it that its failure, if it fails, is not lost."""
        if pending.known_failure() is not None:
            self._report(pending, pending.known_failure())
            return
        self._abandoned.append(pending)
        if len(self._abandoned) >= _MOST_ABANDONED:
            self._look_through_abandoned()

    def _look_through_abandoned(self) -> None:
        for _ in range(len(self._abandoned)):
            pending = self._abandoned.popleft()
            if not pending.is_done():
                self._abandoned.append(pending)
            else:
                self._report(pending, pending.failure())

    def _report(self, pending: Pending, error: BaseException | None) -> None:
        if error is not None and not pending.call.was_reported:
            pending.call.was_reported = True
            text = f"nobody has read the result of a call that has failed: {text_of(error)}"
            tell(logger, logging.ERROR, text)
            self.tell(pending.call, error)

    def on_close(self, closer: Any) -> None:  # Any: a callable without arguments
        """Call something when the world ends, the last one first."""
        self._closers.callback(closer)

    def close(self) -> None:
        """Report what nobody has read, free everything, and send what the notifier has still to send."""
        self._look_through_abandoned()
        for result in list(self.results):
            if not result.is_read and result.done():
                self._report(result.pending, result.pending.failure())
        self._closers.close()
        if self._notices is not None:
            self._notices.close()


def _message(name: str, call: Call, error: BaseException) -> str:
    """What the notifier is told: the headline first."""
    host = socket.gethostname()
    kind = type(error).__name__
    where = [note for note in getattr(error, "__notes__", ()) if note.startswith("raised in ")]
    return "\n".join(
        [
            f"{name}: {call.label} has failed: {kind}",
            f"run: {name}",
            f"call: {call.label}, group {call.group!r}, at {call.caller}",
            f"error: {kind}: {text_of(error).partition(chr(10))[0]}",
            *where,
            f"driver: pid {os.getpid()} on host {host}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
            "",
            traceback_text(error),
        ]
    )


_world: World | None = None
_nowhere = World(Settings(), [DeviceGroup("default", 1)])


def current_world() -> World:
    """That of this process; one process without groups where nothing was initialised."""
    return _nowhere if _world is None else _world


def is_initialized() -> bool:
    """Whether `initialize` was called, and `shutdown` was not."""
    return _world is not None


def enter_world(world: World) -> None:
    """Make it that of this process."""
    global _world
    _world = world


def leave_world() -> World | None:
    """Leave it; returns what it was."""
    global _world
    left, _world = _world, None
    return left


def notify(text: str) -> None:
    """Have the program's notifier told something; from a worker it goes there with the worker's next result."""
    current_world().notify(text)
