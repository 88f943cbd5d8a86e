"""A Ray cluster that one program of a benchmark has for itself, and rounds on it: alike for every side."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator

__all__ = ["NUM_CPUS", "median_of_rounds", "own_cluster"]

NUM_CPUS = 2

# Ray can take up to a second more for a placement group that is asked for right after another was removed, and for
# workers while it is still clearing away others.
_PAUSE_S = 1.5


@contextlib.contextmanager
def own_cluster(num_cpus: int = NUM_CPUS) -> Iterator[None]:
    """Have a cluster of one node for the length of the block, that says it has so many CPUs.

    Its address is settled before it starts and told to all of its processes: whoever looks for a cluster, as Ray Train
    does in its workers, could find another one on this machine, and waits long for it.
    """
    import ray
    from ray._private import services

    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    os.environ["RAY_GCS_SERVER_PORT"] = str(port)
    os.environ["RAY_ADDRESS"] = f"{services.get_node_ip_address()}:{port}"
    ray.init(
        address="local", include_dashboard=False, num_cpus=num_cpus, log_to_driver=False, logging_level=logging.ERROR
    )
    try:
        time.sleep(_PAUSE_S)  # for the processes that it starts in advance
        yield
    finally:
        ray.shutdown()


def median_of_rounds(
    measure: Callable[[], dict[str, float]], num_rounds: int, beside: Callable[[], dict[str, float]] | None = None
) -> dict[str, float]:
    """The median of each figure over some rounds; each begins some time after what came before it.

    Args:
        measure: gives the figures of one round.
        num_rounds: how many.
        beside: gives further ones, taken in turn with the others.
    """
    taken = []
    for _ in range(num_rounds):
        figures: dict[str, float] = {}
        for take in (measure,) if beside is None else (measure, beside):
            time.sleep(_PAUSE_S)
            figures |= take()
        taken.append(figures)
    return {name: statistics.median(each[name] for each in taken) for name in taken[0]}
