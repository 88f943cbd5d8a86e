"""The tracks that a train function can be tested on: in this process, under torchrun, over forked ranks, and others.

A test speaks with its train function through return values, reports, files and exceptions only, since on most tracks
the function runs in other processes. Where the contract's table gives a track a meaning of its own, `Track` has a field
that says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from turnout.callback import UserCallback
from turnout.checks import refused
from turnout.config import RunConfig, ScalingConfig
from turnout.controllers import find
from turnout.result import Result
from turnout.testing.faults import Fault, with_faults
from turnout.testing.torchrun import run_under_torchrun
from turnout.trainer.data_parallel import DataParallelTrainer

__all__ = ["IN_PROCESS", "PROCESS", "RAY", "TORCHRUN", "TRACKS", "Fit", "Track", "track_of"]

T = TypeVar("T")

Fit: TypeAlias = Callable[..., Result]
"""Called as ``fit(train_fn, **arguments)`` with the arguments of `Track.fit`."""


@dataclass(frozen=True, kw_only=True)
class Track:
    """One way to run a train function.

    Args:
        name: shown in the test's id.
        scaling_config: chooses it.
        world_size: how many ranks it has here.
        keeps_in_memory: a run without a storage path is in memory; else it goes to a folder.
        retries: failed attempts are run again by `fit()`.
        is_distributed: what `TrainFnUtils.is_distributed()` says.
        is_on_a_cluster: its ranks may be on other machines, and have not the driver's environment.
        folder: where runs without a storage path go that are not kept in memory, and what ranks bring home of those
            that are; None for the user's home and for a temporary folder.
    """

    name: str
    scaling_config: ScalingConfig
    world_size: int
    keeps_in_memory: bool
    retries: bool
    is_distributed: bool
    is_on_a_cluster: bool = False
    folder: str | None = None

    def fit(
        self,
        train_fn: Callable[..., Any],
        *,
        trainer: type[DataParallelTrainer] | None = None,
        faults: Sequence[Fault] = (),
        **arguments: Any,  # Any: of the trainer
    ) -> Result:
        """Train.

        Args:
            train_fn: the train function.
            trainer: the class that trains it; None for one that every track has.
            faults: strike on the ranks, each as often as it says over all attempts of a rank.
            arguments: of the trainer, but for ``scaling_config``.

        Returns:
            The trainer's; where every rank has a `Result` of its own, rank 0's, with the return values of all.
        """
        run_config = arguments.get("run_config")
        callbacks = [] if run_config is None else list(run_config.callbacks or ())
        results = self.drive_everywhere(
            lambda fit: fit(train_fn, trainer=trainer, faults=faults, **arguments), callbacks
        )
        if len(results) > 1 and results[0].path is None:
            results[0].return_values = [result.return_value for result in results]
        return results[0]

    def drive(self, program: Callable[[Fit], T]) -> T:
        """Run a driver program, which trains on this track by the function that it is given.

        Returns:
            What it returns; rank 0's, where every rank runs the driver program.
        """
        return self.drive_everywhere(program)[0]

    def drive_everywhere(self, program: Callable[[Fit], T], callbacks: Sequence[UserCallback] = ()) -> list[T]:
        """Run a driver program as `drive` does; returns what it returns in every process that runs it, by rank.

        Args:
            program: the program.
            callbacks: of its runs; what those of rank 0 remember is brought back to them.
        """
        return [program(self._fit)]

    def on_every_rank(self, value: T) -> list[T]:
        """What `Result.return_values` is if all ranks return the same."""
        return [value] * self.world_size

    def _fit(
        self,
        train_fn: Callable[..., Any],
        *,
        trainer: type[DataParallelTrainer] | None = None,
        faults: Sequence[Fault] = (),
        **arguments: Any,  # Any: of the trainer
    ) -> Result:
        if "scaling_config" in arguments:
            raise refused("scaling_config", arguments["scaling_config"], f"the track {self.name!r} gives its own")
        run_config = arguments.get("run_config")
        if self.folder is not None and not self.keeps_in_memory and getattr(run_config, "storage_path", None) is None:
            arguments["run_config"] = dataclasses.replace(run_config or RunConfig(), storage_path=self.folder)
        kind = trainer or self._usual_trainer()
        with with_faults(train_fn, faults) as function:
            return kind(function, scaling_config=self.scaling_config, **arguments).fit()

    def _usual_trainer(self) -> type[DataParallelTrainer]:
        return DataParallelTrainer


class _TorchrunTrack(Track):
    """Every rank is a process that runs the whole driver program."""

    def drive_everywhere(self, program: Callable[[Fit], T], callbacks: Sequence[UserCallback] = ()) -> list[T]:
        return run_under_torchrun(
            lambda: program(self._fit), world_size=self.world_size, callbacks=callbacks, folder=self.folder
        )

    def _usual_trainer(self) -> type[DataParallelTrainer]:
        from turnout.trainer.torch import TorchTrainer

        return TorchTrainer


def track_of(controller: str, world_size: int = 2) -> Track:
    """The track of a controller of several ranks, from what its traits say.

    Args:
        controller: its name, as in ``ScalingConfig(controller=...)``.
        world_size: how many ranks it has in tests, at most.

    Raises:
        UsageError: no controller has this name.
    """
    traits = find(controller).traits
    size = min(world_size, traits.max_workers or world_size)
    return Track(
        name=controller,
        scaling_config=ScalingConfig(num_workers=size, controller=controller),
        world_size=size,
        keeps_in_memory=not traits.isolates_workers,
        retries=traits.restartable,
        is_distributed=traits.forms_group,
        is_on_a_cluster=traits.multi_node,
    )


IN_PROCESS = Track(
    name="in-process",
    scaling_config=ScalingConfig(num_workers=0),
    world_size=1,
    keeps_in_memory=True,
    retries=True,
    is_distributed=False,
)
TORCHRUN = _TorchrunTrack(
    name="torchrun",
    scaling_config=ScalingConfig(num_workers=0),
    world_size=2,
    keeps_in_memory=True,
    retries=False,
    is_distributed=False,
)
PROCESS = track_of("process")
RAY = track_of("ray")
TRACKS = (IN_PROCESS, TORCHRUN, PROCESS, RAY)
