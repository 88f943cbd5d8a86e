"""`Channel`: what a controller hands each worker, its way home."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

from turnout.config import PreemptionInfo
from turnout.session.events import RankInfo, Reported, WorkerEvent

__all__ = ["Channel", "ExchangeKind"]

ExchangeKind: TypeAlias = Literal["barrier", "broadcast", "gather"]


class Channel(Protocol):
    """A worker's way to the driver and, through it, to the other ranks."""

    @property
    def ranks(self) -> RankInfo:
        """Who this worker is."""

    @property
    def notice(self) -> PreemptionInfo | None:
        """That machines of the run will be taken away, if the last meeting has told so; the same on all ranks."""

    def publish(self, event: WorkerEvent) -> None:
        """Push an event to the driver; returns once it cannot be lost by this process going on."""

    def exchange(
        self,
        tag: str,
        value: Any,  # Any: whatever the ranks pass each other
        how: ExchangeKind,
        event: Reported | None = None,
    ) -> Any:
        """Meet all ranks.

        Args:
            tag: what this rank is doing, to be compared with the others and shown in errors.
            value: what this rank brings.
            how: ``"barrier"`` gives None, ``"broadcast"`` rank 0's value, ``"gather"`` the list of all, by rank.
            event: for a gather, pushed to the driver as the ranks meet, if none of them brings a value: so that a
                report without a checkpoint costs one message.
        """

    def branch(self, name: str) -> Channel:
        """A line of meetings beside this one, for work in the background: it meets those of its name on the others.

        Args:
            name: the same on every rank; asked for again, it is the same line.
        """
