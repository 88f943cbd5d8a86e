"""A disk that is full in the middle of an upload, a real one: a small tmpfs that the test mounts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import turnout
from tests.crash.lane import Lane, Tally
from tests.crash.train_program import payload, write_folder
from turnout import Checkpoint, CheckpointUploadMode, StorageError

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """3 MiB large, of which a file takes 2."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        (disk / "filler").write_bytes(bytes(2 * MIB))
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("mode", ["SYNC", "ASYNC", "MIXED"])
def test_a_run_on_a_full_disk_ends_with_path_and_need_loses_nothing_and_goes_on_once_there_is_room(
    tmp_path: Path, tally: Tally, small_disk: Path, mode: str
) -> None:
    lane = Lane(tmp_path, tally, storage_path=str(small_disk / "results"), mode=mode)
    for _ in range(2):  # the second meets a disk that is full from the start
        assert lane.live(num_steps=100) == 1, lane.output
        error = lane.told().errors[-1]
        assert re.match(
            rf"StorageError: {small_disk}/.*no space left.*\d+ bytes are needed, \d+ bytes are available", error
        )
        newest = lane.audit().newest
        assert newest >= 5
    (small_disk / "filler").unlink()
    assert lane.live(num_steps=3) == 0, lane.output
    assert lane.audit().newest == newest + 3


@pytest.mark.parametrize("mode", list(CheckpointUploadMode)[:2])
def test_a_report_that_meets_a_full_disk_can_be_made_again_in_the_same_run(
    tmp_path: Path, small_disk: Path, mode: CheckpointUploadMode
) -> None:
    failed: list[str] = []

    def train() -> None:
        for step in range(40):
            folder = tmp_path / "work" / str(step)
            while True:
                write_folder(str(folder), payload(step))
                try:
                    turnout.report({"step": step}, Checkpoint(folder), checkpoint_upload_mode=mode)
                    turnout.get_all_reported_checkpoints()
                    break
                except StorageError as error:
                    failed.append(str(error))
                    (small_disk / "filler").unlink(missing_ok=True)

    result = turnout.DataParallelTrainer(
        train,
        scaling_config=turnout.ScalingConfig(num_workers=0),
        run_config=turnout.RunConfig(name="run", storage_path=small_disk / "results"),
    ).fit()
    assert len(failed) == 1
    assert re.search(r"no space left.*\d+ bytes are needed, \d+ bytes are available", failed[0])
    assert str(small_disk) in failed[0]
    steps = [metrics["step"] for _, metrics in result.best_checkpoints or ()]
    missing = set(range(40)) - set(steps)
    assert len(missing) <= (mode is CheckpointUploadMode.ASYNC)  # an upload that fails is told by the next report
