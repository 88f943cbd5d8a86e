"""Joining a Ray cluster, only where the program has not done so itself."""

from __future__ import annotations

from typing import NamedTuple

from turnout.errors import UnsupportedError

__all__ = ["DriverNode", "connected_node", "driver_node"]

_CLIENT = (
    "this program is connected to Ray through the Ray client (ray://), where what it waits for would come second hand; "
    "run the program on the cluster itself: ray job submit --address <the dashboard's> -- python script.py"
)


class DriverNode(NamedTuple):
    """The node that this program runs on.

    Args:
        node_id: as Ray names it.
        address: the other nodes reach it by.
    """

    node_id: str
    address: str


def connected_node() -> DriverNode:
    """Join the cluster that ``RAY_ADDRESS`` names, or start one here, unless the program has; where this program is.

    What was started here stays up, as it does after ``ray.init()``: the next run finds it warm.

    Raises:
        UnsupportedError: the connection is one of the Ray client's.
    """
    import ray

    if not ray.is_initialized():
        ray.init()
    if ray.util.client.ray.is_connected():
        raise UnsupportedError(_CLIENT)
    return driver_node()


def driver_node() -> DriverNode:
    """Where this program is, which has joined a cluster."""
    import ray

    return DriverNode(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())
