"""`ResourceManager`: places the groups of a program on a Ray cluster, so that each device is handed out once.

There is a placement group a node for each kind of accelerator, pinned to it, with the devices of the ranks there; a
task in it learns which physical ones Ray has set aside, and the workers, which take nothing from Ray for themselves,
are told by their environment. Groups on CPUs have placement groups of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turnout.cluster.connection import connected_node
from turnout.cluster.placement import Bundles, Placement
from turnout.errors import ResourceError, UsageError
from turnout.infra.device_group import DeviceGroup
from turnout.infra.platforms import Platform, platform_of
from turnout.infra.ray.map import ClusterMap, WorkerPlace

__all__ = ["ResourceManager", "Want", "chosen_nodes", "wanted"]

_NODE_LABEL = "ray.io/node-id"
_CPU = "CPU"


class Want(NamedTuple):
    """What one placement group is for.

    Args:
        kind: the platform's name.
        group: a group of CPUs; None for devices, which groups share.
        node: its number among those of its kind, or of the group.
        resource: as Ray counts it.
        amount: of it.
    """

    kind: str
    group: str | None
    node: int
    resource: str
    amount: int

    def resources(self, node_cpus: float) -> dict[str, float]:
        """The bundle, on a node with so many CPUs."""
        if self.resource == _CPU:
            return {_CPU: float(self.amount)}
        half = float(int(node_cpus) // 2)
        return {self.resource: float(self.amount)} | ({_CPU: half} if half else {})

    def __str__(self) -> str:
        what = f"group {self.group!r}" if self.group is not None else f"node {self.node} of {self.kind}"
        return f"{self.amount} {self.resource} for {what}"


class Node(NamedTuple):
    """A node of the cluster.

    Args:
        node_id: as Ray names it.
        address: for people.
        total: its resources.
        free: those of them that nobody has.
    """

    node_id: str
    address: str
    total: Mapping[str, float]
    free: Mapping[str, float]


def wanted(groups: Sequence[DeviceGroup], nproc_per_node: int, ncpu_proc_per_node: int) -> list[Want]:
    """The placement groups that a program needs.

    Args:
        groups: with all ranks listed.
        nproc_per_node: devices of a node, by which ranks are dealt to nodes.
        ncpu_proc_per_node: workers of a CPU group on a node at most.

    Raises:
        UsageError: a worker's devices are on two nodes, or there is no such platform.
    """
    most: dict[tuple[str, int], int] = {}
    wants: list[Want] = []
    for group in groups:
        platform = platform_of(group.kind)
        if platform.resource == _CPU:
            for index, first in enumerate(range(0, group.num_workers, ncpu_proc_per_node)):
                amount = min(ncpu_proc_per_node, group.num_workers - first)
                wants.append(Want(group.kind, group.name, index, _CPU, amount))
            continue
        for worker in range(group.num_workers):
            ranks = group.worker_ranks(worker)
            nodes = {rank // nproc_per_node for rank in ranks}
            if len(nodes) > 1:
                raise UsageError(
                    f"DeviceGroup({group.name!r}): worker {worker} has the ranks {ranks}, which are on different nodes "
                    f"with nproc_per_node={nproc_per_node}; the devices of one worker are on one node"
                )
            key = (group.kind, nodes.pop())
            most[key] = max(most.get(key, 0), max(ranks) % nproc_per_node + 1)
    devices = [
        Want(kind, None, index, platform_of(kind).resource, amount) for (kind, index), amount in sorted(most.items())
    ]
    return devices + wants


def chosen_nodes(wants: Sequence[Want], nodes: Sequence[Node], *, of_free: bool) -> list[Node] | None:
    """A node for each placement group, filling one after another; None if they do not fit.

    Args:
        wants: what they are for.
        nodes: in the order in which they are filled.
        of_free: go by what is free, and not by what there is.
    """
    left = {node.node_id: dict(node.free if of_free else node.total) for node in nodes}
    chosen = []
    for want in wants:
        for node in nodes:
            asked, has = want.resources(node.total.get(_CPU, 0.0)), left[node.node_id]
            if all(has.get(name, 0.0) + 1e-9 >= amount for name, amount in asked.items()):
                for name, amount in asked.items():
                    has[name] -= amount
                chosen.append(node)
                break
        else:
            return None
    return chosen


class ResourceManager:
    """The placement groups of one program.

    Args:
        groups: with all ranks listed.
        nproc_per_node: see `initialize`.
        ncpu_proc_per_node: see `initialize`.
        timeout_s: for what is busy to become free.

    Raises:
        ResourceError: the cluster cannot hold the groups, or has not in time; the text says what each node has.
    """

    def __init__(
        self, groups: Sequence[DeviceGroup], nproc_per_node: int, ncpu_proc_per_node: int, timeout_s: float
    ) -> None:
        self._groups = groups
        self._nproc_per_node = nproc_per_node
        self._ncpu_proc_per_node = ncpu_proc_per_node
        self._timeout_s = timeout_s
        self._wants = wanted(groups, nproc_per_node, ncpu_proc_per_node)
        self._own = connected_node()
        self.placements: list[Placement] = []
        try:
            self._place()
            self.devices = self._discovered()
        except BaseException:
            self.close()
            raise
        self.map = ClusterMap({group.name: self._places(group) for group in groups})

    def close(self) -> None:
        """Give everything back."""
        import ray

        placements, self.placements = self.placements, []
        if ray.is_initialized():  # else all has been given back already
            for placement in placements:
                placement.remove()

    def _place(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        nodes = self._nodes()
        self._nodes_of_wants = chosen_nodes(self._wants, nodes, of_free=True) or chosen_nodes(
            self._wants, nodes, of_free=False
        )
        if self._nodes_of_wants is None:
            raise ResourceError(f"the cluster cannot hold the groups: {self._told(nodes)}")
        for want, node in zip(self._wants, self._nodes_of_wants, strict=True):
            bundles = Bundles(
                num_workers=1,
                resources=want.resources(node.total.get(_CPU, 0.0)),
                labels=[{_NODE_LABEL: node.node_id}],
            )
            self.placements.append(Placement(bundles, "turnout-infra"))
        for placement in self.placements:
            if not placement.wait(deadline - time.monotonic()):
                raise ResourceError(
                    f"the groups were not placed within initialize(placement_timeout_s={self._timeout_s:g}): "
                    f"{self._told(self._nodes())}"
                )

    def _nodes(self) -> list[Node]:
        """Those that are alive, this program's own first."""
        import ray

        free = ray._private.state.available_resources_per_node()
        nodes = [
            Node(each["NodeID"], each["NodeManagerAddress"], each["Resources"], free.get(each["NodeID"], {}))
            for each in ray.nodes()
            if each["Alive"]
        ]
        own = self._own.node_id
        return sorted(nodes, key=lambda node: (node.node_id != own, node.address, node.node_id))

    def _told(self, nodes: Sequence[Node]) -> str:
        """What was asked, what each node has and what of it is taken."""
        names = list(dict.fromkeys([*(want.resource for want in self._wants), _CPU]))
        asked = "; ".join(map(str, self._wants))
        has = "; ".join(
            f"node {node.address} has "
            + ", ".join(f"{node.total.get(name, 0):g} {name} ({node.free.get(name, 0):g} free)" for name in names)
            for node in nodes
        )
        return f"asked: {asked} (and half of its node's CPUs beside each lot of accelerators); {has}"

    def _discovered(self) -> dict[tuple[str, int], list[str]]:
        """The physical devices of each kind and node, as Ray has set them aside."""
        import ray

        asked: dict[tuple[str, int], Any] = {}
        for want, placement in zip(self._wants, self.placements, strict=True):
            if want.resource != _CPU:
                variable = platform_of(want.kind).visible_devices_variable
                resources = {want.resource: float(want.amount)}
                task = ray.remote(_given_devices).options(**placement.task_options(0, resources))
                asked[want.kind, want.node] = task.remote(want.resource, variable)
        try:
            given = ray.get(list(asked.values()), timeout=self._timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise ResourceError(
                f"the nodes have not said within initialize(placement_timeout_s={self._timeout_s:g}) which devices "
                f"they have: {self._told(self._nodes())}"
            ) from None
        devices = {
            (kind, index): platform_of(kind).physical_devices(*each)
            for (kind, index), each in zip(asked, given, strict=True)
        }
        for want in self._wants:
            found = devices.get((want.kind, want.node), [])
            if want.resource != _CPU and len(found) < want.amount:
                raise ResourceError(f"asked: {want}; its placement group was given the devices {found}")
        self._check_devices(devices)
        return devices

    def _check_devices(self, devices: Mapping[tuple[str, int], Sequence[str]]) -> None:
        taken: dict[tuple[str, str, str], int] = {}
        for want, node in zip(self._wants, self._nodes_of_wants or [], strict=True):
            for device in devices.get((want.kind, want.node), ()) if want.resource != _CPU else ():
                key = (node.node_id, want.kind, device)
                if key in taken:
                    raise ResourceError(f"node {node.address} has given {want.kind} device {device} twice")
                taken[key] = want.node

    def _places(self, group: DeviceGroup) -> list[WorkerPlace]:
        platform = platform_of(group.kind)
        places = []
        for worker in range(group.num_workers):
            want: tuple[str, str | None, int]
            if platform.resource == _CPU:
                want = (group.kind, group.name, worker // self._ncpu_proc_per_node)
                devices: list[str] = []
            else:
                ranks = group.worker_ranks(worker)
                want = (group.kind, None, ranks[0] // self._nproc_per_node)
                devices = self._devices_of(group, ranks)
            number = next(number for number, each in enumerate(self._wants) if each[:3] == want)
            node = (self._nodes_of_wants or [])[number]
            places.append(self._worker_place(platform, self.placements[number], node, devices))
        return places

    def _worker_place(self, platform: Platform, placement: Placement, node: Node, devices: list[str]) -> WorkerPlace:
        return WorkerPlace(placement.guest_options(0), node.node_id, tuple(devices), platform.worker_variables(devices))

    def _devices_of(self, group: DeviceGroup, ranks: Sequence[int]) -> list[str]:
        if group.visible_devices is not None:
            return [group.visible_devices[group.listed_ranks.index(rank)] for rank in ranks]
        there = self.devices[group.kind, ranks[0] // self._nproc_per_node]
        return [there[rank % self._nproc_per_node] for rank in ranks]


def _given_devices(resource: str, variable: str | None) -> tuple[list[str], dict[str, str]]:
    """On a node: the devices of the bundle that this task has, and what its environment says."""
    import ray

    given = ray.get_runtime_context().get_accelerator_ids().get(resource, [])
    return [str(each) for each in given], {name: os.environ.get(name, "") for name in [variable] if name is not None}
