"""What tests of the contract share: how a train function speaks with its test."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import turnout
import turnout.collective
from turnout import Checkpoint, TrainRunContext, UserCallback


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
