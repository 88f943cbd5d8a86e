"""What Ray knows of nodes that are about to go, or are gone: asked for, as it tells nobody by itself."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

__all__ = ["deaf_nodes", "draining_nodes", "node_addresses"]

_ASK_S = 5.0
_ANSWER_S = 2.0
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # RFC 9113, 3.4


def draining_nodes() -> dict[str, int | None]:
    """The nodes that Ray was told will be taken away, each with its deadline; for a thread that may wait.

    Returns:
        By node id the milliseconds since the epoch, or None where no deadline is known.
    """
    import ray

    worker: Any = ray._private.worker.global_worker  # Any: it has one once the program has joined a cluster
    told = worker.gcs_client.get_draining_nodes(timeout=_ASK_S)
    return {node: deadline or None for node, deadline in told.items()}


def node_addresses() -> dict[str, tuple[str, int]]:
    """Where Ray's own process on each node listens, of the nodes that are alive as far as Ray knows."""
    import ray

    return {
        node["NodeID"]: (node["NodeManagerAddress"], node["NodeManagerPort"]) for node in ray.nodes() if node["Alive"]
    }


def deaf_nodes(nodes: Iterable[str]) -> set[str]:
    """Which of the nodes are lost, also before Ray's health check finds it out, which takes it half a minute.

    A node is lost if Ray says so, or if its own process there takes no connection or says nothing on it.
    """
    addresses = node_addresses()
    return {node for node in set(nodes) if node not in addresses or not _answers(addresses[node])}


def _answers(address: tuple[str, int]) -> bool:
    """Whether a gRPC server is there: it greets whoever does, or hangs up where it speaks TLS.

    A process that is stopped still has its connections taken by the kernel.
    """
    try:
        with socket.create_connection(address, timeout=_ANSWER_S) as connection:
            connection.sendall(_HELLO)
            connection.recv(1)
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True
