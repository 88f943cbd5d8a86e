"""Ctrl-C, in training and during uploads: what was taken is committed, nothing is left, and the run can go on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.lane import Lane, Tally, wait_until
from turnout.testing.faults import Fault


def status(lane: Lane) -> str:
    return str(json.loads((lane.path / "run.json").read_text())["status"])


def interrupt(lane: Lane, process: subprocess.Popen[str], within_s: float = 20) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(within_s) == -signal.SIGINT, lane.output
    assert lane.told().errors[-1].startswith("KeyboardInterrupt"), lane.told().errors


def goes_on(lane: Lane) -> None:
    newest = lane.audit().newest
    assert lane.live(num_steps=2) == 0, lane.output
    assert lane.audit().newest == newest + 2
    assert status(lane) == "FINISHED"


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC", "MIXED"])
def test_ctrl_c_while_training_leaves_the_run_aborted_with_all_that_it_has_taken(
    tmp_path: Path, tally: Tally, mode: str
) -> None:
    lane = Lane(tmp_path, tally, mode=mode)
    with lane.start() as process:
        assert process.stdout is not None
        process.stdout.readline()
        interrupt(lane, process)
    assert status(lane) == "ABORTED"
    assert lane.told().left == [""]
    assert lane.audit().newest >= lane.told().taken
    assert "turnout" not in "".join(os.listdir(lane.path)), "something is left in the run's folder"
    goes_on(lane)


def test_ctrl_c_during_an_async_upload_waits_for_it(tmp_path: Path, tally: Tally) -> None:
    lane = Lane(tmp_path, tally, mode="ASYNC", asks=False)
    with lane.start(Fault(point="commit.before_record", action="delay", delay_s=0.5, on_hit=3)) as process:
        wait_until(lambda: {0, 1, 2, 3} <= lane.told().begun, "the third upload to be under way")
        interrupt(lane, process)
    assert status(lane) == "ABORTED"
    assert lane.told().left == [""]
    assert lane.audit().newest >= lane.told().taken >= 2
    goes_on(lane)


def test_ctrl_c_during_an_upload_that_hangs_gives_it_up_after_the_drain_timeout(tmp_path: Path, tally: Tally) -> None:
    lane = Lane(tmp_path, tally, mode="ASYNC", asks=False, drain_timeout_s=0.5)
    with lane.start(Fault(point="upload.file", action="delay", delay_s=600, on_hit=9)) as process:
        wait_until(lambda: {0, 1, 2, 3} <= lane.told().begun, "the third upload to be under way")
        interrupt(lane, process, within_s=10)
    assert "given up (CheckpointConfig.drain_timeout_s)" in lane.output
    assert lane.audit().newest == 1
    assert status(lane) == "ABORTED"
    goes_on(lane)


def test_a_second_ctrl_c_does_not_wait_for_an_upload_that_hangs(tmp_path: Path, tally: Tally) -> None:
    lane = Lane(tmp_path, tally, mode="ASYNC", asks=False)
    with lane.start(Fault(point="upload.file", action="delay", delay_s=600, on_hit=9)) as process:
        wait_until(lambda: {0, 1, 2, 3} <= lane.told().begun, "the third upload to be under way")
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        interrupt(lane, process, within_s=10)
    assert lane.audit().newest == 1
    goes_on(lane)


@pytest.mark.parametrize(
    ("seed", "plan"),
    [(1, {"mode": "SYNC", "num_to_keep": 2}), (2, {"mode": "ASYNC"}), (3, {"mode": "MIXED", "lease_s": 1.0})],
    ids=["sync", "async", "mixed"],
)
def test_ctrl_c_at_a_random_moment_loses_nothing_and_hangs_nowhere(
    tmp_path: Path, tally: Tally, seed: int, plan: dict[str, Any]
) -> None:
    moments = random.Random(seed)
    lane = Lane(tmp_path, tally, **plan)
    for _ in range(7):
        with lane.start() as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(moments.uniform(0.0, 0.06))  # the random moment itself: nothing is waited for
            interrupt(lane, process)
        assert lane.audit().newest >= lane.told().taken
        assert lane.told().left[-1] == ""
        assert status(lane) == "ABORTED"
    goes_on(lane)
