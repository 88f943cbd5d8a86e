"""How ranks meet: one part of `TrainFnUtils`, swapped by the mode that a run is in."""

from __future__ import annotations

from typing import Any, Protocol, Self

from turnout.session.channel import Channel
from turnout.session.events import Reported

__all__ = ["ChannelCollective", "Collective", "SoloCollective"]


class Collective(Protocol):
    """Meetings of all ranks; every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def world_size(self) -> int:
        """How many ranks meet."""

    def barrier(self, tag: str) -> None:
        """Return once every rank has come."""

    def broadcast(self, tag: str, value: Any) -> Any:  # Any: whatever the ranks pass each other
        """Return rank 0's value on every rank."""

    def gather(
        self,
        tag: str,
        value: Any,  # Any: whatever the ranks pass each other
        event: Reported | None = None,
    ) -> list[Any]:
        """Return every rank's value, by rank, on every rank; ``event`` is as `Channel.exchange` says."""

    def branch(self, name: str) -> Collective:
        """Meetings beside these, for work in the background; see `Channel.branch`."""


class SoloCollective:
    """One rank alone: it is always there already."""

    rank = 0
    world_size = 1

    def barrier(self, tag: str) -> None:
        """Nobody to wait for."""

    def broadcast(self, tag: str, value: Any) -> Any:  # Any: passes through
        """The value itself."""
        return value

    def gather(
        self,
        tag: str,
        value: Any,  # Any: passes through
        event: Reported | None = None,
    ) -> list[Any]:
        """The value alone."""
        return [value]

    def branch(self, name: str) -> Self:
        """Alone there as well."""
        return self


class ChannelCollective:
    """Many ranks, who meet over the channel that their controller gave them.

    Args:
        channel: of this rank.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.rank = channel.ranks.rank
        self.world_size = channel.ranks.world_size

    def barrier(self, tag: str) -> None:
        """Return once every rank has come."""
        self._channel.exchange(tag, None, "barrier")

    def broadcast(self, tag: str, value: Any) -> Any:  # Any: whatever the ranks pass each other
        """Return rank 0's value on every rank."""
        return self._channel.exchange(tag, value, "broadcast")

    def gather(
        self,
        tag: str,
        value: Any,  # Any: whatever the ranks pass each other
        event: Reported | None = None,
    ) -> list[Any]:
        """Return every rank's value, by rank, on every rank; ``event`` is as `Channel.exchange` says."""
        values: list[Any] = self._channel.exchange(tag, value, "gather", event)
        return values

    def branch(self, name: str) -> ChannelCollective:
        """Meetings beside these, for work in the background; see `Channel.branch`."""
        return ChannelCollective(self._channel.branch(name))
