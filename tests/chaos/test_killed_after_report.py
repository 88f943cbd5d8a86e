"""A checkpoint whose `report` has returned survives SIGKILL on the very next line of either rank, every time."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest

import turnout
from tests.distributed.on_ray import assert_clean, fit
from turnout import Checkpoint, FailureConfig
from turnout.collective import barrier
from turnout.testing.cluster import local_cluster

NUM_KILLS = 50


def train(config: dict[str, str]) -> int:
    rank = turnout.get_context().get_world_rank()
    checkpoint, step = turnout.get_checkpoint(), 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            step = int(Path(folder, "step").read_text()) + 1
    if rank == 0:
        with open(config["entered"], "a") as entered:
            entered.write(f"{step}\n")
    if step == NUM_KILLS:
        return step
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step").write_text(str(step))
        turnout.report({"step": step}, Checkpoint(folder))
    if rank == step % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    barrier()
    raise AssertionError("the other rank was killed, and came")


@pytest.mark.timeout(900)
def test_every_one_of_fifty_is_gone_on_from(tmp_path: Path, tally: Counter[str]) -> None:
    with local_cluster():
        entered = tmp_path / "entered"
        failures = FailureConfig(max_failures=NUM_KILLS)
        result = fit(train, tmp_path, config={"entered": str(entered)}, failure_config=failures)
        assert_clean()

    assert result.return_values == [NUM_KILLS, NUM_KILLS]
    assert entered.read_text().split() == [str(step) for step in range(NUM_KILLS + 1)]
    tally["killed on the line after a report"] = NUM_KILLS
