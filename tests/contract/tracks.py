"""The tracks that every behaviour of the contract is run over, and what tests of it share.

A test speaks with its train function through return values, reports, files and exceptions only, since on most tracks
the function runs in other processes. Where the contract's table gives a track a meaning of its own, `Track` has a field
that says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import turnout
import turnout.collective
from tests.contract.torchrun import run_under_torchrun
from turnout import Checkpoint, DataParallelTrainer, Result, ScalingConfig, TrainRunContext, UserCallback

T = TypeVar("T")

Fit: TypeAlias = Callable[..., Result]
"""Called as ``fit(train_fn, **arguments)`` with the arguments of a trainer but for ``scaling_config``."""


@dataclass(frozen=True, kw_only=True)
class Track:
    """One way to run a train function.

    Args:
        name: shown in the test's id.
        scaling_config: chooses it.
        world_size: how many ranks it has here.
        runs_in_this_process: the train function runs on the thread that called `fit()`.
        keeps_in_memory: a run without a storage path is in memory; else it goes to a folder under the user's home.
        retries: failed attempts are run again by `fit()`.
        is_distributed: what `TrainFnUtils.is_distributed()` says.
    """

    name: str
    scaling_config: ScalingConfig
    world_size: int
    runs_in_this_process: bool
    keeps_in_memory: bool
    retries: bool
    is_distributed: bool

    def fit(self, train_fn: Callable[..., Any], **arguments: Any) -> Result:
        """Train; where every rank has a `Result` of its own, rank 0's has the return values of all."""
        run_config = arguments.get("run_config")
        callbacks = [] if run_config is None else list(run_config.callbacks or ())
        results = self.drive_everywhere(lambda fit: fit(train_fn, **arguments), callbacks)
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

        def fit(train_fn: Callable[..., Any], **arguments: Any) -> Result:
            return DataParallelTrainer(train_fn, scaling_config=self.scaling_config, **arguments).fit()

        return [program(fit)]

    def on_every_rank(self, value: T) -> list[T]:
        """What `Result.return_values` is if all ranks return the same."""
        return [value] * self.world_size


class TorchrunTrack(Track):
    """Every rank is a process that runs the whole driver program."""

    def drive_everywhere(self, program: Callable[[Fit], T], callbacks: Sequence[UserCallback] = ()) -> list[T]:
        def fit(train_fn: Callable[..., Any], **arguments: Any) -> Result:
            from turnout.torch import TorchTrainer

            return TorchTrainer(train_fn, scaling_config=self.scaling_config, **arguments).fit()

        return run_under_torchrun(lambda: program(fit), world_size=self.world_size, callbacks=callbacks)


IN_PROCESS = Track(
    name="in-process",
    scaling_config=ScalingConfig(num_workers=0),
    world_size=1,
    runs_in_this_process=True,
    keeps_in_memory=True,
    retries=True,
    is_distributed=False,
)
PROCESS = Track(
    name="process",
    scaling_config=ScalingConfig(num_workers=2, controller="process"),
    world_size=2,
    runs_in_this_process=False,
    keeps_in_memory=False,
    retries=True,
    is_distributed=True,
)
TORCHRUN = TorchrunTrack(
    name="torchrun",
    scaling_config=ScalingConfig(num_workers=0),
    world_size=2,
    runs_in_this_process=False,
    keeps_in_memory=True,
    retries=False,
    is_distributed=False,
)
TRACKS = (IN_PROCESS, TORCHRUN, PROCESS)


class Recorder(UserCallback):
    """Remembers what it is told; of a checkpoint, what its files say at that moment."""

    def __init__(self) -> None:
        self.reports: list[tuple[list[dict[str, Any]], dict[str, str] | None]] = []
        self.contexts: list[TrainRunContext] = []
        self.failures: list[dict[int, BaseException]] = []

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        self.contexts.append(run_context)
        self.reports.append((metrics, None if checkpoint is None else texts_in(checkpoint)))

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, BaseException]) -> None:
        self.contexts.append(run_context)
        self.failures.append(worker_exceptions)


def rank() -> int:
    """This rank, inside a train function."""
    return turnout.get_context().get_world_rank()


def report_folder(metrics: dict[str, Any], files: dict[str, str], **arguments: Any) -> None:
    """Report a checkpoint from a temporary folder, as the usual train function does."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        turnout.report(metrics, Checkpoint.from_directory(folder), **arguments)


def text_in(checkpoint: Checkpoint | None, name: str) -> str:
    """What one file of a checkpoint says."""
    assert checkpoint is not None
    with checkpoint.as_directory() as folder:
        return Path(folder, name).read_text()


def texts_in(checkpoint: Checkpoint) -> dict[str, str]:
    """What all files of a checkpoint say, but for the commit record."""
    with checkpoint.as_directory() as folder:
        files = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != ".turnout.json"]
        return {str(path.relative_to(folder)): path.read_text() for path in files}


def is_first_time(folder: Path) -> bool:
    """Whether this rank asks for the first time; all ranks have asked before any is told.

    It is kept in files, since attempts may be different processes.
    """
    mark = folder / f"rank-{rank()}-was-here"
    is_first = not mark.exists()
    mark.touch()
    turnout.collective.barrier()
    return is_first
