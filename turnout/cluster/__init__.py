"""What is asked of Ray wherever workers are placed on a cluster: joining it, placement groups, who sits where."""

from turnout.cluster.connection import DriverNode, connected_node, driver_node
from turnout.cluster.devices import visible_devices
from turnout.cluster.notices import deaf_nodes, draining_nodes
from turnout.cluster.placement import Bundles, Placement, actor_options
from turnout.cluster.processes import kill_actor_process
from turnout.cluster.runtime_env import sent_runtime_env
from turnout.cluster.seats import Seat, Whereabouts, seated
from turnout.cluster.shortage import Shortage, num_placeable, shortage_of, spare_beside

__all__ = [
    "Bundles",
    "DriverNode",
    "Placement",
    "Seat",
    "Shortage",
    "Whereabouts",
    "actor_options",
    "connected_node",
    "deaf_nodes",
    "draining_nodes",
    "driver_node",
    "kill_actor_process",
    "num_placeable",
    "seated",
    "sent_runtime_env",
    "shortage_of",
    "spare_beside",
    "visible_devices",
]
