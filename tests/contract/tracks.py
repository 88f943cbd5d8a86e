"""The tracks that every behaviour of the contract is run over.

A test speaks with its train function through return values, reports and exceptions only, since on another track the
function runs in another process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import turnout
from turnout import DataParallelTrainer, Result, ScalingConfig


@dataclass(frozen=True)
class Track:
    """One way to run a train function.

    Args:
        name: shown in the test's id.
        scaling_config: chooses it.
        world_size: how many ranks it has here.
    """

    name: str
    scaling_config: ScalingConfig
    world_size: int

    def fit(self, train_fn: Callable[..., Any], **arguments: Any) -> Result:
        return DataParallelTrainer(train_fn, scaling_config=self.scaling_config, **arguments).fit()


TRACKS = (Track("in-process", ScalingConfig(num_workers=0), 1),)


def report_folder(metrics: dict[str, Any], files: dict[str, str], **arguments: Any) -> None:
    """Report a checkpoint from a temporary folder, as the usual train function does."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        turnout.report(metrics, turnout.Checkpoint.from_directory(folder), **arguments)


def text_in(checkpoint: turnout.Checkpoint | None, name: str) -> str:
    assert checkpoint is not None
    with checkpoint.as_directory() as folder:
        return Path(folder, name).read_text()
