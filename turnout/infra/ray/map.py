"""`ClusterMap`: where the workers of every group are; known to the driver and, as a copy, to every worker."""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turnout.controllers.travel import dumps_work
from turnout.controllers.work import working_directory
from turnout.environment import WORKER_VARIABLE
from turnout.infra.calls import Call
from turnout.infra.device_group import DeviceGroup
from turnout.infra.device_mesh import DeviceMesh
from turnout.infra.ray.actor import Hello, Launch
from turnout.infra.ray.workers import RayWorkers
from turnout.infra.world import Settings, World

__all__ = ["ClusterMap", "WorkerPlace"]


class WorkerPlace(NamedTuple):
    """Where a worker of a group is.

    Args:
        options: of an actor there.
        node_id: as Ray names its node.
        devices: the physical ones that are its own.
        variables: by which it sees these alone.
    """

    options: dict[str, Any]
    node_id: str
    devices: tuple[str, ...]
    variables: dict[str, str]


class ClusterMap:
    """The places of every group's workers, and what was built there.

    Args:
        places: by group and rank.
    """

    def __init__(self, places: Mapping[str, Sequence[WorkerPlace]]) -> None:
        self.places = dict(places)
        self._workers: weakref.WeakSet[RayWorkers] = weakref.WeakSet()

    def workers_on(
        self,
        world: World,
        group: str,
        members: Sequence[int],
        mesh: DeviceMesh,
        kind: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
    ) -> RayWorkers:
        """Build an object on some of a group's workers.

        Args:
            world: of this process.
            group: of the workers.
            members: their places in the group.
            mesh: of the object.
            kind: its class.
            args: of its constructor.
            kwargs: of its constructor.
            call: of its constructor.

        Raises:
            UsageError: class or arguments cannot be pickled; the text names what is at fault.
            WorkerGroupError: the constructor has failed.
        """
        places = [self.places[group][member] for member in members]
        launch = Launch(
            world=functools.partial(_worker_world, _portable(world.settings), world.groups, group, len(places), self),
            made=dumps_work(
                (kind, args, kwargs), lambda: iter([("the class", kind), ("args", args), ("kwargs", kwargs)])
            ),
            mesh=mesh,
            variables={WORKER_VARIABLE: "1"},
            path=list(sys.path),
            directory=working_directory(),
            full_determinism=world.settings.full_determinism,
        )
        workers = RayWorkers.started(
            [place.options for place in places],
            launch,
            lambda hellos: [{**rank_variables(hellos, rank), **place.variables} for rank, place in enumerate(places)],
            call,
            kind.__name__,
        )
        self._workers.add(workers)
        return workers

    def close(self) -> None:
        """Kill every actor that this process has started."""
        for workers in list(self._workers):
            workers.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterMap, (self.places,)


def rank_variables(hellos: Sequence[Hello], rank: int) -> dict[str, str]:
    """The variables by which libraries know a rank, from where all of them are."""
    nodes = list(dict.fromkeys(hello.node_id for hello in hellos))
    own = hellos[rank].node_id
    there = [other for other, hello in enumerate(hellos) if hello.node_id == own]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hellos)),
        "LOCAL_RANK": str(there.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(there)),
        "NODE_RANK": str(nodes.index(own)),
    }


def _portable(settings: Settings) -> Settings:
    """Without what stays with the driver, as secrets."""
    return dataclasses.replace(settings, notifier=None)


def _worker_world(
    settings: Settings, groups: Sequence[DeviceGroup], group: str, world_size: int, cluster: ClusterMap, rank: int
) -> World:
    """The world of a worker."""
    return World(settings, groups, rank=rank, world_size=world_size, worker_of=group, cluster=cluster)
