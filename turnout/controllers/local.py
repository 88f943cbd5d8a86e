"""`LocalController`: one worker, in the current process and on the current thread, so that a debugger works."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self

from turnout.controllers.base import Controller, Outcome, RunSpec, Sink, Traits, Worker
from turnout.errors import ControllerError, UnsupportedError
from turnout.session.channel import ExchangeKind
from turnout.session.events import RankInfo, Reported, WorkerEvent

__all__ = ["LocalController"]


class LocalController(Controller):
    """Runs the train function where `fit()` was called; an event is a direct call, and there is no other thread."""

    name: ClassVar[str] = "local"
    traits: ClassVar[Traits] = Traits(
        isolates_workers=False,
        forms_group=False,
        restartable=True,
        resizable=False,
        multi_node=False,
        ray_data=True,
        max_workers=1,
    )

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        if spec.scaling_config.max_workers > 1:
            raise UnsupportedError(
                f"the controller 'local' trains in the current process, with one worker; num_workers="
                f"{spec.scaling_config.num_workers!r} needs another controller"
            )
        self._channel: _LocalChannel | None = None

    def run_attempt(self, worker: Worker, sink: Sink) -> Outcome:
        """Call the worker."""
        self._channel = _LocalChannel(sink)
        worker(self._channel)
        return Outcome()

    def abort(self, reason: str, grace_s: float) -> None:
        """Make the next `report` raise: a function on the current thread cannot be ended by force."""
        if self._channel is not None:
            self._channel.break_off(reason)


class _LocalChannel:
    """A direct line: `publish` is the driver's own function."""

    ranks = RankInfo()
    notice = None

    def __init__(self, sink: Sink) -> None:
        self.publish: Sink = sink

    def exchange(
        self,
        tag: str,
        value: Any,  # Any: passes through
        how: ExchangeKind,
        event: Reported | None = None,
    ) -> Any:
        if event is not None and value is None:
            self.publish(event)
        return {"barrier": None, "broadcast": value, "gather": [value]}[how]

    def branch(self, name: str) -> Self:
        return self

    def break_off(self, reason: str) -> None:
        def refuse(event: WorkerEvent) -> NoReturn:
            raise ControllerError(f"the run was aborted: {reason}")

        self.publish = refuse
