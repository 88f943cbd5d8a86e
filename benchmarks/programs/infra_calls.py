"""Call a method on 8 actors with slices of a list, and put the results together: three ways, in turn, on one cluster.

    python -m benchmarks.programs.infra_calls NUM_ACTORS NUM_CALLS NUM_ROUNDS

Prints JSON: the median microseconds of a call with `turnout.infra`, of the same program ported by hand to plain actors,
and of `ray.get` of bare calls with slices that were cut before, which does nothing but call.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.own_cluster import own_cluster

_ROWS_EACH = 4
_WARM_UPS = 50


class Model:
    """What a call does: next to nothing."""

    def rows(self, batch: list[int]) -> list[int]:
        """The same rows."""
        return batch


class PortedModel:
    """The same program by hand: slices, calls and results, and nothing that is checked.

    Args:
        num_actors: how many it has.
    """

    def __init__(self, num_actors: int) -> None:
        import ray

        self._actors: list[Any] = [ray.remote(Model).options(num_cpus=0).remote() for _ in range(num_actors)]

    def rows(self, batch: list[int]) -> list[int]:
        """Cut, call, and put together."""
        import ray

        size, num_longer = divmod(len(batch), len(self._actors))
        references, start = [], 0
        for number, actor in enumerate(self._actors):
            stop = start + size + (number < num_longer)
            references.append(actor.rows.remote(batch[start:stop]))
            start = stop
        return [row for rows in ray.get(references) for row in rows]


def main(num_actors: int, num_calls: int, num_rounds: int) -> dict[str, float]:
    """The figures of one program."""
    import ray

    import turnout.infra as infra
    from turnout.infra import DeviceGroup, on_group

    @infra.remote_class()
    class TurnoutModel:
        @infra.remote_function(dispatch="slice", collect="flatten")
        def rows(self, batch: list[int]) -> list[int]:
            return batch

    batch = list(range(num_actors * _ROWS_EACH))
    slices = [batch[start : start + _ROWS_EACH] for start in range(0, len(batch), _ROWS_EACH)]
    with own_cluster(num_actors), infra.initialize("ray", groups=[DeviceGroup("model", num_actors)]):
        model = on_group(TurnoutModel, "model")()
        ported = PortedModel(num_actors)
        actors: list[Any] = [ray.remote(Model).options(num_cpus=0).remote() for _ in range(num_actors)]
        ways: dict[str, Callable[[], Any]] = {
            "turnout_us": lambda: model.rows(batch).result(),
            "ported_us": lambda: ported.rows(batch),
            "bare_us": lambda: ray.get([actor.rows.remote(own) for actor, own in zip(actors, slices, strict=True)]),
        }
        for name, call in ways.items():
            for _ in range(_WARM_UPS):
                result = call()
            assert result == (slices if name == "bare_us" else batch)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(num_rounds):
            for name, call in ways.items():
                started = time.perf_counter()
                for _ in range(num_calls):
                    call()
                taken[name].append((time.perf_counter() - started) / num_calls * 1e6)
    return {name: statistics.median(each) for name, each in taken.items()}


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
