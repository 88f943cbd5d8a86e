"""`Site`: what a controller knows of where the ranks of an attempt are, for data that is cut once that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Site"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where ranks are, and what they leave of their cluster.

    Args:
        nodes: the node of each rank, as the cluster names it.
        held: what each rank holds, by the resource's name.
        spare: what the ranks leave of each node, whoever has it just now; None where the cluster may grow.
    """

    nodes: Sequence[str]
    held: Mapping[str, float]
    spare: Sequence[Mapping[str, float]] | None = None
