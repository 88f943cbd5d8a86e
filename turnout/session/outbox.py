"""`Outbox`: a worker's events on their way to the driver, one at a time, whichever thread they come from."""

from __future__ import annotations

import threading

from turnout.errors import UsageError
from turnout.session.channel import Channel
from turnout.session.events import RankInfo, WorkerEvent

__all__ = ["Outbox"]


class Outbox:
    """The part of a session that carries its events.

    Args:
        channel: the way to the driver; it says who this worker is.
    """

    __slots__ = ("channel", "lock", "num_reports", "refusal")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.lock = threading.RLock()  # a signal handler may report while a report is under way
        self.num_reports = 0
        self.refusal: str | None = None
        """Why nothing is taken any more; None while the worker runs."""

    @property
    def ranks(self) -> RankInfo:
        """Who this worker is."""
        return self.channel.ranks

    def publish(self, event: WorkerEvent) -> None:
        """Push an event to the driver.

        Raises:
            UsageError: the worker's train function has ended, or this process is a forked copy of the worker.
        """
        with self.lock:
            self.require_open()
            self.channel.publish(event)

    def require_open(self) -> None:
        """Raise if nothing is taken any more.

        Raises:
            UsageError: with the reason.
        """
        if self.refusal is not None:
            raise UsageError(f"report(): {self.refusal}")

    def close(self, refusal: str) -> None:
        """Take nothing any more, for the reason given."""
        self.refusal = refusal

    def become_forked_child(self, refusal: str) -> None:
        """This process is a copy, made while another thread may have held the lock."""
        self.lock = threading.RLock()
        self.refusal = refusal
