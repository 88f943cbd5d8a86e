"""Which accelerators each rank of a group sees: a pure function of what Ray has given them."""

from __future__ import annotations

from collections.abc import Sequence

from turnout.cluster.seats import Seat, Whereabouts

__all__ = ["visible_devices"]


def visible_devices(workers: Sequence[Whereabouts], seats: Sequence[Seat], *, shows_all: bool) -> list[tuple[str, ...]]:
    """The GPUs that each rank sees, by rank: its own, or those of its node's ranks, its own first one at local rank.

    The latter lets ranks of a node reach each other's memory, where what they run goes by the local rank. Where ranks
    share a GPU there is no such order, and each sees its own alone. A rank without one sees none.

    Args:
        workers: where they are, and with which GPUs.
        seats: who they are, by rank.
        shows_all: show them those of all ranks of their node.
    """
    if not shows_all:
        return [workers[seat.worker].gpus for seat in seats]
    nodes: dict[int, list[tuple[str, ...]]] = {}
    for seat in seats:
        nodes.setdefault(seat.node_rank, []).append(workers[seat.worker].gpus)
    shared = {node: _shared(each) for node, each in nodes.items()}
    return [shared[seat.node_rank] or workers[seat.worker].gpus for seat in seats]


def _shared(each: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The GPUs of a node's ranks, the first one of each in front; empty if they do not all have some of their own."""
    gpus = [gpu for own in each for gpu in own]
    if not all(each) or len(set(gpus)) < len(gpus):
        return ()
    return tuple(own[0] for own in each) + tuple(gpu for own in each for gpu in own[1:])
