"""The floor of the Ray track: bare actors that do the least that any implementation must; nothing of Turnout's.

    python -m benchmarks.floor_ray start NUM_RANKS NUM_ROUNDS
    python -m benchmarks.floor_ray small NUM_RANKS
    python -m benchmarks.floor_ray reports NUM_RANKS NUM_REPORTS

``start``: a placement group and its actors asked for at once, `import torch`, and gloo through a store whose port is
bound before it is told. ``small``: the same without torch, with 0.01 CPU an actor, once. Both print the milliseconds
until the last actor is where a train function would begin, on a cluster that has done the same with two before.

``reports``: the exchanges a second of actors that each send a dict to the driver, which answers all once it has all.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import socket
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Client, Listener
from typing import Any

from benchmarks.own_cluster import median_of_rounds, own_cluster

_SMALL = 0.01
_GONE_S = 30.0


class Rank:
    """What an actor does.

    Args:
        uses_torch: whether it imports torch, on the main thread and before anything else.
    """

    def __init__(self, uses_torch: bool) -> None:
        if uses_torch:
            importlib.import_module("torch.distributed")

    def bind(self) -> int:
        """Hold a port for the store."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        port: int = self.listener.getsockname()[1]
        return port

    def join(self, rank: int, num_ranks: int, port: int) -> float:
        """Join gloo; returns when that was done."""
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.TCPStore(  # type: ignore[attr-defined]  # re-exported without saying so
            "127.0.0.1",
            port,
            num_ranks,
            is_master=rank == 0,
            wait_for_workers=False,
            master_listen_fd=self.listener.detach() if rank == 0 else None,
            timeout=timedelta(seconds=60),
            use_libuv=True,
        )
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
        return time.time()

    def enter(self) -> float:
        """Returns when this was called."""
        return time.time()

    def pid(self) -> int:
        """Of this actor."""
        return os.getpid()

    def report(self, address: Any, num_reports: int) -> None:
        """Send dicts, and wait for the answer to each."""
        with Client(address) as line:
            for step in range(num_reports):
                line.send({"loss": 1.0 / (1 + step)})
                line.recv()


@functools.cache
def _actor_class() -> Any:  # Any: Ray's own
    """As Ray takes it; made once, as each that is made anew is sent to the cluster anew."""
    import ray

    return ray.remote(Rank)


class Ranks:
    """Actors in a placement group of their own.

    Args:
        num_ranks: how many.
        num_cpus: of each.
        uses_torch: whether they import torch.
    """

    def __init__(self, num_ranks: int, num_cpus: float, uses_torch: bool) -> None:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._group = placement_group([{"CPU": num_cpus}] * num_ranks)
        self.actors = [
            _actor_class()
            .options(num_cpus=num_cpus, scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index))
            .remote(uses_torch)
            for index in range(num_ranks)
        ]
        self._ray = ray

    def end(self) -> None:
        """Kill them, and wait until their processes are gone."""
        from ray.util.placement_group import remove_placement_group

        pids = self._ray.get([actor.pid.remote() for actor in self.actors])
        for actor in self.actors:
            self._ray.kill(actor)
        remove_placement_group(self._group)
        deadline = time.monotonic() + _GONE_S
        while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)


def start(num_ranks: int) -> dict[str, float]:
    """Ranks with torch and gloo."""
    import ray

    started = time.time()
    ranks = Ranks(num_ranks, 1.0, uses_torch=True)
    port = ranks.actors[0].bind.remote()
    there = [actor.join.remote(rank, num_ranks, port) for rank, actor in enumerate(ranks.actors)]
    entered = max(ray.get(there)) - started
    ranks.end()
    return {"entered_ms": entered * 1e3}


def start_small(num_ranks: int) -> dict[str, float]:
    """Ranks that do nothing."""
    import ray

    started = time.time()
    ranks = Ranks(num_ranks, _SMALL, uses_torch=False)
    entered = max(ray.get([actor.enter.remote() for actor in ranks.actors])) - started
    ranks.end()
    return {"entered_ms": entered * 1e3}


def reports(num_ranks: int, num_reports: int) -> dict[str, float]:
    """Ranks that do nothing but exchange."""
    import ray

    ranks = Ranks(num_ranks, _SMALL, uses_torch=False)
    with Listener(("127.0.0.1", 0), backlog=num_ranks) as listener:
        done = [actor.report.remote(listener.address, num_reports) for actor in ranks.actors]
        lines = [listener.accept() for _ in range(num_ranks)]
        started = time.perf_counter()
        for _ in range(num_reports):
            for line in lines:
                line.recv()
            for line in lines:
                line.send(None)
        rate = num_reports / (time.perf_counter() - started)
        ray.get(done)
    ranks.end()
    return {"per_s": rate}


def main(what: str, num_ranks: int, number: int = 1) -> dict[str, float]:
    """The figures of one program."""
    with own_cluster():
        if what == "reports":
            return reports(num_ranks, number)
        measure = {"start": start, "small": start_small}[what]
        measure(2)
        return median_of_rounds(lambda: measure(num_ranks), number)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
