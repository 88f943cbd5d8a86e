"""What the tests of the Ray track share: a run in few words, and what a cluster holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.util import placement_group_table

import turnout
from tests.distributed.ranks import text_of, wait_until
from turnout import DataParallelTrainer, Result, RunConfig, ScalingConfig


def fit(train_fn: Callable[..., Any], storage: Path, *, num_workers: int = 2, config: Any = None, **run: Any) -> Result:
    """Train on actors."""
    scaling = run.pop("scaling_config", None) or ScalingConfig(num_workers=num_workers, controller="ray")
    return DataParallelTrainer(
        train_fn,
        train_loop_config=config,
        scaling_config=scaling,
        run_config=RunConfig(storage_path=str(storage), **run),
    ).fit()


def failure_of(train_fn: Callable[..., Any], storage: Path, *, within_s: float = 25.0, **arguments: Any) -> str:
    """The text that a user sees of a run that fails, which it must do in time."""
    started = time.monotonic()
    with pytest.raises(turnout.TrainingFailedError) as caught:
        fit(train_fn, storage, **arguments)
    assert time.monotonic() - started < within_s
    return text_of(caught.value)


def ranks_alive() -> list[str]:
    """The processes of ranks on this machine that come of this one's cluster."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if "RankActor" in command:
            found.append(f"{process.pid} {command}")
    return found


def groups_alive() -> list[Any]:
    """The placement groups that are not removed."""
    return [each for each in placement_group_table().values() if each["state"] != "REMOVED"]


def is_clean() -> bool:
    """Whether the cluster holds nothing of a run any more."""
    return not ranks_alive() and not groups_alive() and is_free()


def is_free() -> bool:
    total, free = ray.cluster_resources(), ray.available_resources()
    return all(free.get(name) == amount for name, amount in total.items() if name in ("CPU", "GPU", "memory"))


def assert_clean() -> None:
    """The cluster holds nothing of a run, or soon does not."""
    assert not groups_alive()
    assert not ranks_alive()
    wait_until(is_free, "what the run had to be free", 5)
