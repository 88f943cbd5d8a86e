"""A controller for the tests of the seam: its ranks are threads, which meet at a `threading.Barrier`."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Self

from turnout.controllers import Controller, Ending, Outcome, RunSpec, Sink, Traits, Worker
from turnout.session.channel import ExchangeKind
from turnout.session.events import Died, Failed, Finished, RankInfo, Reported, WorkerEvent


class ThreadController(Controller):
    """Places every rank on a thread of this process."""

    name: ClassVar[str] = "threads"
    traits: ClassVar[Traits] = Traits(
        isolates_workers=False,
        forms_group=True,
        restartable=True,
        resizable=False,
        multi_node=False,
        ray_data=False,
    )
    failures_to_start: ClassVar[int] = 0
    """How many attempts end before they begin, as if no resources were there."""
    is_lasting: ClassVar[bool] = False
    preemptions: ClassVar[int] = 0
    silent_rank: ClassVar[int | None] = None
    """The rank whose last word is lost, as if its process had been killed."""

    failed: ClassVar[list[Exception]] = []
    """What ranks have raised, once the runtime has been told."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.attempts = 0

    def run_attempt(self, worker: Worker, sink: Sink) -> Outcome:
        self.attempts += 1
        if self.attempts <= self.failures_to_start:
            return Outcome(ending=Ending.NOT_STARTED, error=OSError("no room"), is_lasting=self.is_lasting)
        if self.attempts <= self.preemptions:
            return Outcome(ending=Ending.PREEMPTED, error=OSError("node-1 goes"))
        size = self.spec.scaling_config.max_workers
        lock, meeting, slots = threading.Lock(), threading.Barrier(size), [None] * size

        def publish(event: WorkerEvent) -> None:
            with lock:
                if isinstance(event, Finished) and event.rank == self.silent_rank:
                    sink(Died(event.rank, "was killed"))
                else:
                    sink(event)
                if isinstance(event, Failed):
                    self.failed.append(event.error)

        threads = [
            threading.Thread(target=worker, args=(_ThreadChannel(rank, size, publish, meeting, slots),))
            for rank in range(size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Outcome()

    def abort(self, reason: str, grace_s: float) -> None:
        raise NotImplementedError


class _ThreadChannel:
    notice = None

    def __init__(self, rank: int, size: int, publish: Sink, meeting: threading.Barrier, slots: list[Any]) -> None:
        self.ranks = RankInfo(rank, size, rank, size, 0)
        self.publish = publish
        self._meeting, self._slots = meeting, slots

    def exchange(self, tag: str, value: Any, how: ExchangeKind, event: Reported | None = None) -> Any:
        self._slots[self.ranks.rank] = value
        self._meeting.wait()
        values = list(self._slots)
        if event is not None and all(each is None for each in values):
            self.publish(event)
        self._meeting.wait()
        return {"barrier": None, "broadcast": values[0], "gather": values}[how]

    def branch(self, name: str) -> Self:
        raise NotImplementedError
