"""What a worker tells the driver: a closed set of small immutable events, pushed the moment they happen.

They are named tuples and not dataclasses because one is made for every `report`: it costs a third as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from turnout.checkpoint import Checkpoint
from turnout.config import ValidationTaskConfig

if TYPE_CHECKING:  # the storage room is for runs with storage
    from turnout.storage.record import CommitRecord

__all__ = [
    "Committed",
    "Died",
    "Failed",
    "Finished",
    "Log",
    "RankInfo",
    "Reported",
    "Saved",
    "Started",
    "WorkerEvent",
    "WorkerInfo",
]


class RankInfo(NamedTuple):
    """Who a worker is among the others.

    Args:
        rank: the world rank, from 0.
        world_size: how many workers there are.
        local_rank: the rank among the workers of its node.
        local_world_size: how many workers its node has.
        node_rank: the rank of its node, from 0.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0


class WorkerInfo(NamedTuple):
    """Where a worker runs.

    Args:
        ranks: who it is.
        host: its machine's name.
        pid: its process.
    """

    ranks: RankInfo
    host: str
    pid: int


class Saved(NamedTuple):
    """Where a reported checkpoint is kept, which is not the folder that was passed.

    Args:
        checkpoint: the handle.
        is_committed: False while it is on its way; a `Committed` follows.
        record: its commit record, for the driver; None in a run without storage, and while it is on its way.
        validation: the arguments of the validation that was asked for; None if none was.
    """

    checkpoint: Checkpoint
    is_committed: bool = True
    record: CommitRecord | None = None
    validation: ValidationTaskConfig | None = None


class Started(NamedTuple):
    """The worker is about to enter the train function."""

    rank: int
    worker: WorkerInfo


class Reported(NamedTuple):
    """The train function called `report`.

    Args:
        rank: the world rank.
        number: how many reports this rank had made before in this attempt.
        metrics: what was reported, in types that JSON can hold; nobody else's to change.
        saved: where the report's checkpoint is kept; None if it carried none.
    """

    rank: int
    number: int
    metrics: dict[str, Any]
    saved: Saved | None


class Committed(NamedTuple):
    """A checkpoint that is reported with `Saved.is_committed` False is committed now; it may come before the report.

    Args:
        rank: the world rank.
        saved: where it is kept.
    """

    rank: int
    saved: Saved


class Finished(NamedTuple):
    """The train function returned ``value``."""

    rank: int
    value: Any


class Failed(NamedTuple):
    """The train function, or what prepares it, raised.

    Args:
        rank: the world rank.
        error: the exception itself where it could travel, else one that stands for it.
        place: the innermost line of the user's that raised, as ``"file:line"``.
        traceback: the exception as Python shows it, where its frames could not travel.
    """

    rank: int
    error: Exception
    place: str
    traceback: str = ""


class Died(NamedTuple):
    """The worker is gone without a word of its own; ``reason`` says how, in words that follow its rank."""

    rank: int
    reason: str


class Log(NamedTuple):
    """The worker has written to its standard output or error.

    Args:
        rank: the world rank.
        data: what it wrote, as it came: whole lines, but for the last of a worker that has ended.
    """

    rank: int
    data: bytes


WorkerEvent: TypeAlias = Started | Reported | Committed | Finished | Failed | Died | Log
