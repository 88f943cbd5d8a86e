"""The rank map: from where the workers of a group are to who they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Seat", "Whereabouts", "seated"]


class Whereabouts(NamedTuple):
    """Where a worker is.

    Args:
        node_id: its node, as Ray names it.
        address: of the node.
        pid: its process.
        devices: the accelerators that Ray has given it, as numbers of its node's or as Ray names them.
        gpus: those of them that are GPUs.
    """

    node_id: str
    address: str
    pid: int
    devices: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


class Seat(NamedTuple):
    """Who a worker is; the seats are listed by rank.

    Args:
        worker: its number in the group as it was made.
        local_rank: the rank among the workers of its node.
        local_world_size: how many workers its node has.
        node_rank: the rank of its node.
    """

    worker: int
    local_rank: int
    local_world_size: int
    node_rank: int


def seated(workers: Sequence[Whereabouts], first_node: str) -> list[Seat]:
    """The seats of a group by rank: the nodes one after another, and on each by device, then by number.

    Args:
        workers: where they are.
        first_node: the driver's, whose workers come first; the other nodes follow as their first workers do.
    """
    nodes: dict[str, list[int]] = {first_node: []}
    for number, worker in enumerate(workers):
        nodes.setdefault(worker.node_id, []).append(number)
    seats = []
    for node_rank, numbers in enumerate(each for each in nodes.values() if each):
        numbers.sort(key=lambda number: ([_order_of(device) for device in workers[number].devices], number))
        seats += [Seat(number, local, len(numbers), node_rank) for local, number in enumerate(numbers)]
    return seats


def _order_of(device: str) -> tuple[int, str]:
    return (int(device), "") if device.isascii() and device.isdigit() else (0, device)
