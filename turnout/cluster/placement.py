"""`Placement`: a placement group with one bundle a worker, and actors that are made in it before it is ready."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnout.cluster.notices import deaf_nodes, draining_nodes
from turnout.config import ScalingConfig
from turnout.errors import UsageError

__all__ = ["Bundles", "Placement", "actor_options"]

_NODE_LABEL = "ray.io/node-id"
_ACCELERATOR_SHARE = 0.001  # of the resource that Ray gives the nodes with an accelerator; it counts nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles:
    """What the workers of a group need, each the same but for labels.

    Args:
        num_workers: how many there are.
        resources: of each, by name; none is 0.
        strategy: how they are laid on nodes, as Ray names it.
        labels: that each one's node must carry; None if that does not matter.
        accelerator_type: that each one's node must have.
    """

    num_workers: int
    resources: Mapping[str, float]
    strategy: str = "PACK"
    labels: Sequence[Mapping[str, str]] | None = None
    accelerator_type: str | None = None

    @classmethod
    def of(cls, scaling: ScalingConfig) -> Bundles:
        """What a run asks for: a CPU for each worker, and a GPU with ``use_gpu``, unless it says otherwise.

        Raises:
            UsageError: it asks for nothing at all.
        """
        asked = dict(scaling.resources_per_worker) if scaling.resources_per_worker is not None else {"CPU": 1.0}
        if scaling.use_gpu:
            asked.setdefault("GPU", 1.0)
        resources = {name: float(amount) for name, amount in asked.items() if amount}
        if not resources:
            raise UsageError(
                f"ScalingConfig(resources_per_worker={scaling.resources_per_worker!r}): a worker on a cluster takes "
                'something, so that Ray can place it; use a fraction such as {"CPU": 0.01}'
            )
        labels = scaling.label_selector
        if isinstance(labels, dict):
            labels = [labels] * scaling.max_workers
        return cls(
            num_workers=scaling.max_workers,
            resources=resources,
            strategy=scaling.placement_strategy,
            labels=labels,
            accelerator_type=scaling.accelerator_type,
        )

    def of_size(self, num_workers: int) -> Bundles:
        """The same for the first so many workers."""
        labels = None if self.labels is None else self.labels[:num_workers]
        return dataclasses.replace(self, num_workers=num_workers, labels=labels)

    @property
    def each(self) -> dict[str, float]:
        """One bundle, as Ray takes it."""
        resources = dict(self.resources)
        if self.accelerator_type is not None:
            resources[f"accelerator_type:{self.accelerator_type}"] = _ACCELERATOR_SHARE
        return resources

    def __str__(self) -> str:
        each = ", ".join(f"{name}: {amount:g}" for name, amount in self.each.items())
        words = [f"{self.num_workers} worker(s) with {{{each}}} each, {self.strategy}"]
        if self.labels is not None:
            distinct = list(dict.fromkeys(str(dict(each)) for each in self.labels))
            words.append(f"on nodes with the labels {' or '.join(distinct)}")
        return " ".join(words)


def actor_options(resources: Mapping[str, float], runtime_env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The options of an actor that is made once and never made again by Ray.

    Args:
        resources: that it takes, by name.
        runtime_env: its runtime environment; without one Ray uses a process that it has started already.
    """
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, **_amounts(resources)}
    if runtime_env is not None:
        options["runtime_env"] = dict(runtime_env)
    return options


def _amounts(resources: Mapping[str, float]) -> dict[str, Any]:
    """Resources by the names of Ray's options."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    amounts: dict[str, Any] = {"resources": {name: amount for name, amount in resources.items() if name not in named}}
    return amounts | {named[name]: amount for name, amount in resources.items() if name in named}


class Placement:
    """A placement group; Ray places bundles anew whose node is lost, and removes it when its driver dies.

    Args:
        bundles: what is to be placed.
        name: of the group, for people; it is made distinct.
        without: nodes that are lost, though Ray may not know yet, or will be.
    """

    def __init__(self, bundles: Bundles, name: str, without: Collection[str] = ()) -> None:
        from ray.util.placement_group import placement_group

        self.bundles = bundles
        self.without = frozenset(without)
        self._group = placement_group(
            [bundles.each] * bundles.num_workers,
            strategy=bundles.strategy,
            name=f"{name}-{os.urandom(4).hex()}",
            bundle_label_selector=_labels(bundles, self.without),
        )

    @property
    def state(self) -> str:
        """As Ray names it: ``"PENDING"``, ``"CREATED"``, ``"RESCHEDULING"`` or ``"REMOVED"``."""
        from ray.util.placement_group import placement_group_table

        return str(placement_group_table(self._group).get("state"))

    @property
    def nodes(self) -> list[str]:
        """The node of each bundle that is placed; those that are lost with their node are left out."""
        import ray

        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return [node for node in self._placed() if node in alive]

    @property
    def lost(self) -> set[str]:
        """The nodes of bundles that are gone or will be taken away, and those it was made without that still are."""
        nodes = {*self._placed(), *self.without}
        return deaf_nodes(nodes) | (nodes & draining_nodes().keys())

    def _placed(self) -> list[str]:
        from ray.util.placement_group import placement_group_table

        placed = placement_group_table(self._group).get("bundles_to_node_id") or {}
        return [node for node in placed.values() if node]

    def options(self, index: int, runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
        """The options of the actor that takes a bundle, whether or not it is placed yet."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        return actor_options(self.bundles.each, runtime_env) | {"scheduling_strategy": strategy}

    def guest_options(self, index: int) -> dict[str, Any]:
        """The options of an actor that lives in a bundle and takes nothing of it for itself."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        return actor_options({}) | {"num_gpus": 0, "scheduling_strategy": strategy}

    def task_options(self, index: int, resources: Mapping[str, float]) -> dict[str, Any]:
        """The options of a task that takes some of a bundle while it runs."""
        options = self.guest_options(index) | _amounts(resources)
        return {name: value for name, value in options.items() if name not in ("max_restarts", "max_task_retries")}

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is placed, in whole seconds, as Ray counts them here; whether it is."""
        return bool(self._group.wait(max(1, math.ceil(timeout_s))))

    def remove(self) -> None:
        """Give everything back; whatever still runs in it is killed."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self._group)


def _labels(bundles: Bundles, without: Collection[str]) -> list[dict[str, str]] | None:
    """What each bundle's node must carry: Ray labels a node with its own id."""
    if not without:
        return None if bundles.labels is None else [dict(each) for each in bundles.labels]
    elsewhere = {_NODE_LABEL: f"!in({','.join(sorted(without))})"}
    return [elsewhere | dict(each) for each in bundles.labels or [{}] * bundles.num_workers]
