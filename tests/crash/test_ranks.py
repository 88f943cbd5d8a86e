"""Runs of two ranks: either rank, or their driver, is killed at each point and at random moments; nothing is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.crash.lane import Lane, Tally, read_notes, wait_until
from tests.crash.test_drivers import add_notes, checkpoints
from tests.crash.train_program import read_folder
from turnout.storage.location import StorageLocation
from turnout.storage.reading import committed
from turnout.storage.run_folder import RunFolder
from turnout.testing.faults import Fault, arm_from_environment, environment

NUM_KILLS_OF_RANKS = 20  # in each mode
NUM_KILLS_OF_DRIVERS = 12

# The passing that is struck is that of the second checkpoint or later, by rank where the ranks differ.
BOTH: dict[str, tuple[int, int]] = {
    "commit.before_scan": (2, 2),
    "commit.after_scan": (2, 2),
    "commit.after_offer": (2, 2),
    "upload.file": (6, 4),
    "upload.chunk": (5, 3),
    "commit.after_upload": (2, 2),
    "commit.after_meeting": (2, 2),
    "commit.after_release": (2, 2),
}
RANK_0 = ("commit.before_record", "put.write", "put.before_rename", "put.after", "commit.after_record")
BETWEEN = ("record.before", "record.write", "put.before", "record.after")  # as good as one of the others
ONE_DRIVER = {"num_workers": 2, "max_failures": -1}


def strikes(mode: str, ranks: tuple[int, ...], action: str) -> list[tuple[str, int, int, str]]:
    """Points of these ranks, one an attempt."""
    points = dict(BOTH)
    if mode == "ASYNC":
        del points["upload.chunk"]  # what was staged is linked into its place, and no bytes pass
        points["report.after_stage"] = (2, 2)
    both = [(point, hits[rank], rank, action) for point, hits in points.items() for rank in ranks]
    return both + [(point, 2, 0, action) for point in RANK_0 if 0 in ranks]


@contextlib.contextmanager
def driving(lane: Lane, **changes: Any) -> Iterator[subprocess.Popen[str]]:
    """A driver of two ranks; when the block ends it is killed, and everything of it must be gone soon."""
    with lane.start(**changes) as process:
        yield process
        process.kill()
        process.wait()
        ends_within_2_s(lane)


def ends_within_2_s(lane: Lane) -> None:
    deadline = time.monotonic() + 2
    while left := list(lane.processes()):
        assert time.monotonic() < deadline, f"still there 2 s after the driver: {left}"
        time.sleep(0.01)


def said(process: subprocess.Popen[str], word: str) -> None:
    """Read until the program, or a rank of it, says so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith(f"{word}\n"):
            return
    raise AssertionError(f"the program ended with status {process.wait()} and never said {word!r}")


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC"])
def test_either_rank_may_be_killed_at_each_point_and_its_driver_goes_on_from_the_last_commit(
    tmp_path: Path, tally: Tally, mode: str
) -> None:
    planned = strikes(mode, (0, 1), "kill") + [(point, 2, 0, "kill") for point in BETWEEN]
    lane = Lane(tmp_path, tally, mode=mode, strikes=planned, **ONE_DRIVER)
    with driving(lane) as process:
        for number, (point, _, rank, _) in enumerate(planned):
            said(process, "failed")
            assert lane.run.current_attempt() == number
            lane.count("of a rank at failpoints")
            audit = lane.audit()
            assert audit.newest >= 0, f"nothing was committed before rank {rank} was killed at {point}"
            go_on(process)
        said(process, "reported")
        lane.kill(process, "of a driver of ranks")
    lane.audit()
    assert len(lane.told().errors) == 0, lane.told().errors


def strikes_at_driver(mode: str) -> list[tuple[str, int, int, str]]:
    if mode == "SYNC":
        return strikes(mode, (0,), "kill_driver")
    return strikes(mode, (1,), "kill_driver") + [(point, 2, 0, "kill_driver") for point in RANK_0]


@pytest.mark.parametrize(
    "plan",
    [{"mode": "SYNC"}, {"mode": "MIXED", "num_to_keep": 2, "by_score": True}],
    ids=["sync", "mixed-keeps-best-2"],
)
def test_the_driver_may_be_killed_at_each_point_that_a_rank_has_come_to(
    tmp_path: Path, tally: Tally, plan: dict[str, Any]
) -> None:
    planned = strikes_at_driver(plan["mode"])
    lane = Lane(tmp_path, tally, num_workers=2, strikes=planned, **plan)
    for _ in planned:
        assert lane.live() == -signal.SIGKILL, lane.output
        ends_within_2_s(lane)
        lane.count("of a driver of ranks")
        lane.audit()
    assert lane.run.current_attempt() == len(planned) - 1
    newest = lane.audit().newest
    assert lane.live(num_steps=2) == 0, lane.output
    assert lane.audit().newest == newest + 2


@pytest.mark.parametrize(("mode", "seed"), [("SYNC", 5), ("MIXED", 6)])
def test_ranks_that_are_killed_again_and_again_lose_nothing(tmp_path: Path, tally: Tally, mode: str, seed: int) -> None:
    moments = random.Random(seed)
    lane = Lane(tmp_path, tally, mode=mode, **ONE_DRIVER)
    with driving(lane) as process:
        for _ in range(NUM_KILLS_OF_RANKS):
            said(process, "reported")
            victims = moments.choice([(0,), (1,), (0, 1)])
            pids = lane.told().pids
            time.sleep(moments.uniform(0.0, 0.04))  # the random moment itself: nothing is waited for
            for rank in victims:
                os.kill(pids[rank], signal.SIGKILL)
            said(process, "failed")
            lane.count("of a rank at random moments")
            lane.audit()
            go_on(process)
        said(process, "reported")
    lane.audit()


def test_a_driver_of_ranks_that_is_killed_again_and_again_loses_nothing_and_leaves_no_process(
    tmp_path: Path, tally: Tally
) -> None:
    moments = random.Random(7)
    lane = Lane(tmp_path, tally, mode="MIXED", num_to_keep=3, num_workers=2)
    for _ in range(NUM_KILLS_OF_DRIVERS):
        with driving(lane) as process:
            if moments.random() < 0.25:
                time.sleep(moments.uniform(0.1, 0.8))  # the random moment itself: nothing is waited for
            else:
                said(process, "reported")
                time.sleep(moments.uniform(0.0, 0.06))
            lane.kill(process, "of a driver of ranks")
        lane.audit()


def wait_until_stopped(lane: Lane, rank: int) -> int:
    """Until the rank, whose attempt is to stop it, is; returns its process."""

    def is_stopped() -> bool:
        return f"{lane.told().pids.get(rank)} T" in lane.processes()

    wait_until(is_stopped, f"rank {rank} to be stopped")
    return lane.told().pids[rank]


@pytest.mark.parametrize(("point", "rank"), [("put.before_rename", 0), ("commit.after_upload", 1)])
def test_a_stopped_rank_is_gone_before_the_next_attempt_begins(
    tmp_path: Path, tally: Tally, point: str, rank: int
) -> None:
    lane = Lane(tmp_path, tally, strikes=[(point, 2, rank, "stop")], **ONE_DRIVER)
    with driving(lane) as process:
        stopped = wait_until_stopped(lane, rank)
        os.kill(lane.told().pids[1 - rank], signal.SIGKILL)
        said(process, "failed")
        assert not [each for each in lane.processes() if each.startswith(f"{stopped} ")]
        lane.count("of a rank at failpoints")
        assert lane.audit().newest == 0
        go_on(process)
        said(process, "reported")
    lane.audit()


@pytest.mark.parametrize(("point", "rank"), [("put.before_rename", 0), ("commit.after_upload", 1)])
def test_a_stopped_rank_whose_driver_is_killed_is_gone_too(tmp_path: Path, tally: Tally, point: str, rank: int) -> None:
    lane = Lane(tmp_path, tally, num_workers=2, strikes=[(point, 2, rank, "stop")])
    with driving(lane) as process:
        wait_until_stopped(lane, rank)
        lane.kill(process, "of a driver of ranks")
    assert lane.audit().newest == 0


@pytest.mark.parametrize(
    ("mode", "point", "rank"),
    [
        ("SYNC", "commit.after_upload", 1),
        ("SYNC", "put.before_rename", 0),
        ("SYNC", "record.after", 0),
        ("ASYNC", "record.before", 0),
    ],
)
def test_ranks_that_wake_up_when_another_driver_has_the_run_commit_nothing_that_counts(
    tmp_path: Path, tally: Tally, mode: str, point: str, rank: int
) -> None:
    lane = Lane(tmp_path, tally, num_workers=2, mode=mode)
    own = str(tmp_path / "first-notes")
    first_lane = Lane(tmp_path / "first", Tally(), **{**vars_of(lane), "notes": own, "lease_s": 0.5})
    with driving(first_lane, strikes=[(point, 3, rank, "stop")]) as first:
        wait_until_stopped(first_lane, rank)
        everyone = [int(each.split()[0]) for each in first_lane.processes()]
        for pid in everyone:  # as a machine that sleeps
            os.kill(pid, signal.SIGSTOP)
        promised = read_notes(own)
        with driving(lane, lease_s=0.5) as second:
            said(second, "reported")
            assert "taking over from a driver that is gone" in lane.output
            entered_from = lane.told().entered[-1]
            assert entered_from >= promised.returned
            names = checkpoints(lane)
            for pid in everyone:
                os.kill(pid, signal.SIGCONT)
            assert first.wait(20) == 1
            ends_within_2_s(first_lane)
            after = read_notes(own)
            assert names <= checkpoints(lane), f"removed {names - checkpoints(lane)}"
            assert second.poll() is None
            lane.kill(second, "of one of two drivers")
    assert after.returned <= entered_from, "a report returned whose checkpoint the second driver never saw"
    assert re.search(r"has been superseded by attempt 1|the lease was lost.*driven by host", after.errors[-1]), after
    add_notes(lane, after.begun, after.returned)
    assert all(record.attempt == 1 or record.metrics["step"] <= entered_from for record in committed(lane.run))
    lane.audit()


def vars_of(lane: Lane) -> dict[str, Any]:
    return dataclasses.asdict(lane.plan)


def reports_3_files_of_its_own(storage: Path) -> list[int]:
    context = turnout.get_context()
    rank = context.get_world_rank()
    attempt = RunFolder(StorageLocation.open(storage), "run").current_attempt()
    if attempt == 0 and rank == 1:
        arm_from_environment(environment(Fault(point="commit.after_upload", action="kill", on_hit=3)))
    checkpoint = turnout.get_checkpoint()
    start = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, f"step-{rank}").read_text()) + 1
    for step in range(start, 3):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"step-{rank}").write_text(str(step))
            Path(folder, f"of-try-{attempt}-{rank}").write_text("x")
            turnout.report({"step": step}, turnout.Checkpoint(folder))
    return list(range(start, 3))


def test_d09_a_rank_that_dies_between_its_file_and_the_commit_leaves_no_file_in_the_checkpoint_of_the_rerun(
    tmp_path: Path,
) -> None:
    listed_after_death: list[str] = []

    class Look(turnout.UserCallback):
        def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
            run = RunFolder(StorageLocation.open(tmp_path), "run")
            assert (run.checkpoints / "checkpoint_000002" / "of-try-0-1").is_file(), "the file was not written yet"
            listed_after_death.extend(record.name for record in committed(run))

    result = turnout.DataParallelTrainer(
        lambda: reports_3_files_of_its_own(tmp_path),
        scaling_config=turnout.ScalingConfig(num_workers=2, controller="process"),
        run_config=turnout.RunConfig(
            storage_path=tmp_path,
            name="run",
            callbacks=[Look()],
            failure_config=turnout.FailureConfig(max_failures=1),
        ),
    ).fit()
    assert listed_after_death == ["checkpoint_000000", "checkpoint_000001"]
    assert result.return_values == [[2], [2]]
    assert result.checkpoint is not None
    assert sorted(read_folder(result.checkpoint.path)) == ["of-try-1-0", "of-try-1-1", "step-0", "step-1"]
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == [
        "checkpoint_000000",
        "checkpoint_000001",
        os.path.basename(result.checkpoint.path),
    ]
