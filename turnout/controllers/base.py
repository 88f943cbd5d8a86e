"""The seam: a controller places workers and carries their messages, and gives neither any meaning.

What a report is, when a checkpoint exists, what is retried, who is called back and what a `Result` holds is written
once above this seam, in `turnout.runtime`. So a new controller is one class, and cannot get the semantics wrong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from turnout.checkpoint import Checkpoint
from turnout.config import BackendConfig, DataConfig, RunConfig, ScalingConfig, ValidationConfig
from turnout.data.site import Site
from turnout.errors import UnsupportedError
from turnout.session.channel import Channel
from turnout.session.collective import Collective, SoloCollective
from turnout.session.events import WorkerEvent

__all__ = ["Controller", "DealingWorker", "Ending", "Outcome", "RunSpec", "Sink", "Traits", "Worker"]

Worker: TypeAlias = Callable[[Channel], None]
"""What a controller runs once on each rank, with that rank's channel. It pickles where the run's parts do."""

Sink: TypeAlias = Callable[[WorkerEvent], None]
"""Where a controller pushes the events of its workers, one at a time, each rank's in order."""


@runtime_checkable
class DealingWorker(Protocol):
    """A worker for which the driver prepares something once it is known where the ranks are.

    A controller that sets both `Traits.ray_data` and `Traits.forms_group` asks for that, and calls the worker on each
    rank with that rank's share beside its channel. Every other one calls it as any worker.
    """

    def deal(self, site: Site) -> Sequence[Any]:
        """The share of each rank, which travels as Ray's own objects do."""

    def __call__(self, channel: Channel, share: Any = None) -> None:
        """Be a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a controller can do; asking for more is an error that names the controllers that can.

    Args:
        isolates_workers: a worker's death leaves the driver alive.
        forms_group: its ranks form a group, so the framework's backend is started on them.
        restartable: it can run another attempt after one has failed.
        resizable: the next attempt may have another number of workers.
        multi_node: its workers may be on several machines.
        ray_data: a Ray dataset can be used in its train functions.
        max_workers: how many workers it can place; None for no limit.
        runs_aside: it can run a function in one more process, beside an attempt.
        runs_driver_per_rank: every rank runs the driver program too, and none is placed; rank 0 leads the run.
    """

    isolates_workers: bool
    forms_group: bool
    restartable: bool
    resizable: bool
    multi_node: bool
    ray_data: bool
    max_workers: int | None = None
    runs_aside: bool = False
    runs_driver_per_rank: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that a trainer was told about a run, with names, overrides and defaults settled.

    Args:
        run_id: distinct for every `fit()`.
        train_fn: the train function, with its configuration bound.
        train_loop_config: as the user gave it, for callbacks.
        scaling_config: with the overrides of the environment applied.
        run_config: with the run's name and storage path settled.
        controller: the name of the controller that places the workers.
        backend_config: the framework's process group, if any.
        datasets: what `get_dataset_shard` gives, by name.
        dataset_config: how they are dealt.
        validation_config: what ``report(validation=True)`` runs.
        metadata: the user's own, kept with the run.
        is_named: whether the user gave the run's name; else it is a new one every time.
        resume_from_checkpoint: what `get_checkpoint` gives while the run has none of its own.
    """

    run_id: str
    train_fn: Callable[[], Any]  # Any: the user's own return value
    scaling_config: ScalingConfig
    run_config: RunConfig
    controller: str
    train_loop_config: Any = None  # Any: the user's own
    backend_config: BackendConfig | None = None
    datasets: Mapping[str, Any] = field(default_factory=dict)  # Any: data of the user's
    dataset_config: DataConfig = field(default_factory=DataConfig)
    validation_config: ValidationConfig | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)  # Any: the user's own
    is_named: bool = True
    resume_from_checkpoint: Checkpoint | None = None

    @property
    def name(self) -> str:
        """The run's name, which is settled by now."""
        assert self.run_config.name is not None, "a RunSpec is made with its name settled"
        return self.run_config.name


class Ending(Enum):
    """How an attempt ended, as far as the placing of its workers goes."""

    ENDED = "ended"
    """Every worker ran to its end, good or bad; their events say which."""
    NOT_STARTED = "not started"
    """The group of workers could not be brought up."""
    PREEMPTED = "preempted"
    """Machines were taken away by their owner."""
    RESIZED = "resized"
    """The controller has stopped the ranks at a report, as there is room for more of them now. It is no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a controller alone knows about how an attempt ended; what the ranks did, it has pushed as events.

    Args:
        ending: how it ended.
        error: why, unless it is `Ending.ENDED`.
        is_lasting: a group that could not be brought up, for a cause that the next one is to meet too.
    """

    ending: Ending = Ending.ENDED
    error: Exception | None = None
    is_lasting: bool = False


class Controller(ABC):
    """Places the workers of one run, attempt after attempt, and carries their messages.

    Derive from it, set ``name`` and ``traits``, and register the class with `turnout.controllers.register` or under
    the entry-point group ``turnout.controllers``.

    Args:
        spec: the run; its ``scaling_config`` says how many workers with which resources.

    Raises:
        UnsupportedError: the run asks for what the traits rule out.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]

    attempts_before: int = 0
    """How often the job was started before, where something outside of Turnout restarts it."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        """The run; a controller may have settled what only it can, such as one name for all ranks."""

    @property
    def drivers(self) -> Collective:
        """The driver programs of the run, which is led by rank 0's: this one alone, but where every rank runs one."""
        return SoloCollective()

    def close(self) -> None:  # noqa: B027  # most hold nothing between attempts
        """The run is over; called once, however it ended."""

    @abstractmethod
    def run_attempt(self, worker: Worker, sink: Sink) -> Outcome:
        """Place the ranks, call ``worker`` with each one's channel, and block until all have ended.

        Args:
            worker: what every rank runs. It catches the train function's exceptions and publishes them; it lets
                `KeyboardInterrupt` and `SystemExit` through.
            sink: takes every event that a rank publishes, and a `Died` for each rank that is gone without one. It is
                called by one thread at a time. When a rank fails or dies, the controller ends the others.
        """

    def run_aside(self, worker: Worker, sink: Sink, timeout_s: float | None) -> bool:
        """Call ``worker`` in a process that is no rank, beside an attempt or between two, and block until it has ended.

        It is called by one thread at a time, and by another than `run_attempt`.

        Args:
            worker: what the process runs, as the only one of its group.
            sink: takes its events, as that of `run_attempt`.
            timeout_s: seconds after which it is killed; None for no limit.

        Returns:
            Whether it ended by itself; False if it was killed, for its time or by `end_aside`.

        Raises:
            UnsupportedError: `Traits.runs_aside` is not set.
            ControllerError: the process could not be started.
        """
        raise UnsupportedError(f"the controller {self.name!r} runs nothing beside an attempt")

    def end_aside(self) -> None:  # noqa: B027  # where nothing runs aside nothing is to be ended
        """Kill what `run_aside` runs, now and from now on; may be called from any thread."""

    @abstractmethod
    def abort(self, reason: str, grace_s: float) -> None:
        """End the attempt that is under way; may be called from any thread.

        Args:
            reason: what the workers are told.
            grace_s: seconds that they get to unwind before they are ended by force, where that can be done.
        """
