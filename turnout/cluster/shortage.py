"""What a cluster lacks for a group of workers, in words, and whether it could ever have it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from turnout.cluster.placement import Bundles

__all__ = ["Shortage", "num_placeable", "shortage_of", "spare_beside"]

_NO_LIMIT = 1 << 30  # workers that a node holds which take nothing
_MEMORY = ("memory", "object_store_memory")


class Shortage(NamedTuple):
    """Why a group is not placed.

    Args:
        is_beyond: the whole cluster, with everything free, could not hold it, and nothing will make it grow.
        text: what was asked, what there is and what is short, for people.
    """

    is_beyond: bool
    text: str


def shortage_of(bundles: Bundles) -> Shortage:
    """Look at the cluster as it is now."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources()
    total: dict[str, float] = {}
    for node in nodes:
        for name, amount in node["Resources"].items():
            total[name] = total.get(name, 0.0) + amount
    asked = {name: amount * bundles.num_workers for name, amount in bundles.each.items()}
    fits = _fits(bundles, nodes)
    held = total if not fits else free
    short = [name for name, amount in asked.items() if amount > held.get(name, 0.0)]
    amounts = ", ".join(
        f"{_shown(name, asked[name])} of {name} (in the whole cluster {_shown(name, total.get(name, 0.0))}, free "
        f"{_shown(name, free.get(name, 0.0))})"
        for name in asked
    )
    if short:
        lack = f"short of {', '.join(short)}"
    elif not fits:
        lack = f"no choice among its {len(nodes)} node(s) holds them as {bundles.strategy} and the labels ask"
    else:
        lack = "nothing is short in sum: they are about to start, or what is free lies where it holds no whole worker"
    return Shortage(not fits and not _can_grow(), f"asked: {bundles}, so {amounts}; {lack}")


def num_placeable(bundles: Bundles, held: Sequence[str] = (), without: Collection[str] = ()) -> int:
    """How many workers the cluster has room for now, beside what else runs on it; all that are asked for at most.

    Args:
        bundles: what they take.
        held: the nodes on which some of them are, whose room counts as free.
        without: nodes that count for nothing, as they are about to go or are gone.
    """
    import ray

    free = ray._private.state.available_resources_per_node()
    nodes = []
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] not in without:
            mine, has = held.count(node["NodeID"]), dict(free.get(node["NodeID"], {}))
            for name, amount in bundles.each.items():
                has[name] = has.get(name, 0.0) + mine * amount
            nodes.append({**node, "Resources": has})
    counts = range(bundles.num_workers, 0, -1)
    return next((count for count in counts if _fits(bundles.of_size(count), nodes)), 0)


def spare_beside(bundles: Bundles, nodes: Sequence[str]) -> list[dict[str, float]] | None:
    """What placed workers leave of each node, whoever has it just now; None if the cluster may grow.

    Args:
        bundles: what the workers take.
        nodes: where each of them is.
    """
    import ray

    if _can_grow():
        return None
    return [
        {
            name: amount - bundles.each.get(name, 0.0) * nodes.count(node["NodeID"])
            for name, amount in node["Resources"].items()
        }
        for node in ray.nodes()
        if node["Alive"]
    ]


def _fits(bundles: Bundles, nodes: list[dict[str, Any]]) -> bool:
    """Whether the nodes could hold all workers if nothing else ran; labels are looked at one set after another."""
    labels = [dict(each) for each in bundles.labels] if bundles.labels is not None else [{}] * bundles.num_workers
    sets = [each for index, each in enumerate(labels) if each not in labels[:index]]
    for each in sets:
        num_asked = labels.count(each)
        rooms = [_room(bundles.each, node["Resources"]) for node in nodes if _matches(each, node.get("Labels") or {})]
        if bundles.strategy == "STRICT_PACK":
            held = max(rooms, default=0)
        elif bundles.strategy == "STRICT_SPREAD":
            held = sum(room > 0 for room in rooms)
        else:
            held = sum(rooms)
        if held < num_asked:
            return False
    return True


def _room(each: Mapping[str, float], has: Mapping[str, float]) -> int:
    """How many workers a node holds."""
    return min((int((has.get(name, 0.0) + 1e-9) / amount) for name, amount in each.items()), default=_NO_LIMIT)


def _matches(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a node carries the labels; Ray's own operators, as ``!`` and ``in(...)``, are taken as met."""
    return all(
        labels.get(name) == value for name, value in wanted.items() if not value.startswith("!") and "(" not in value
    )


def _can_grow() -> bool:
    """Whether an autoscaler looks after the cluster; one that has none names its nodes' types by the nodes."""
    import ray
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.experimental.internal_kv import _internal_kv_get

    if ray._private.state.state.get_cluster_config() is not None:
        return True
    status = _internal_kv_get(DEBUG_AUTOSCALING_STATUS)
    report = (json.loads(status).get("autoscaler_report") or {}) if status else {}
    kinds = {*(report.get("active_nodes") or ()), *(report.get("idle_nodes") or ())}
    known = {f"node_{node['NodeID']}" for node in ray.nodes()}
    return bool(kinds - known) or bool(report.get("pending_nodes")) or bool(report.get("pending_launches"))


def _shown(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name in _MEMORY else f"{amount:g}"
