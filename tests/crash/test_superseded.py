"""A newer attempt begins at the worst moment: the older neither believes that it has committed, nor removes a thing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import turnout
from tests.storage.helpers import folder_with, save, started
from turnout import Checkpoint, CheckpointError, RunConfig, ScalingConfig, StorageError
from turnout.failpoints import arm
from turnout.storage.location import StorageLocation
from turnout.storage.reading import committed, newest_verified, resume_point
from turnout.storage.record import verify
from turnout.storage.run_folder import RunFolder


@contextlib.contextmanager
def meanwhile(point: str, act: Callable[[], None]) -> Iterator[None]:
    """Do something when the point is passed, the first time."""

    def hook(name: str, rank: int | None, data: bytes | None) -> None:
        if name == point:
            arm(previous)
            act()

    previous = arm(hook)
    try:
        yield
    finally:
        arm(previous)


def begin_newer(run: RunFolder) -> None:
    run.begin_attempt("a newer one")
    run.set_resume_point(resume_point(newest_verified(run, "full")))


@pytest.mark.parametrize("point", ["record.before", "put.before_rename", "record.after", "commit.after_record"])
def test_a_record_that_a_newer_attempt_may_not_have_seen_is_not_said_to_be_committed(
    tmp_path: Path, point: str
) -> None:
    run = started(StorageLocation.open(tmp_path / "storage"))
    save(run, folder_with(tmp_path / "0", {"model": b"0"}), 0)
    with (
        meanwhile(point, lambda: begin_newer(run)),
        pytest.raises(CheckpointError, match="superseded by attempt 1"),
    ):
        save(run, folder_with(tmp_path / "1", {"model": b"1"}), 1)
    was_seen = point in ("record.after", "commit.after_record")
    assert [record.index for record in committed(run)] == ([0, 1] if was_seen else [0])


def test_a_commit_that_fails_leaves_a_newer_attempts_checkpoint_of_the_same_name_alone(tmp_path: Path) -> None:
    run = started(StorageLocation.open(tmp_path / "storage"))

    def commit_the_same_name() -> None:
        begin_newer(run)
        save(run, folder_with(tmp_path / "newer", {"model": b"newer"}), 0, attempt=1, dir_name="named")
        raise OSError("the older fails now")

    with (
        meanwhile("upload.file", commit_the_same_name),
        pytest.raises((StorageError, CheckpointError)),
    ):
        save(run, folder_with(tmp_path / "older", {"model": b"older"}), 0, dir_name="named")
    assert verify(run.checkpoints / "named", "full") is None
    assert (run.checkpoints / "named" / "model").read() == b"newer"


def test_an_overwriting_run_that_is_superseded_removes_nothing(tmp_path: Path) -> None:
    run = started(StorageLocation.open(tmp_path / "storage"))
    save(run, folder_with(tmp_path / "0", {"model": b"0"}), 0)
    source = folder_with(tmp_path / "1", {"model": b"1"})
    config = RunConfig(name="run", storage_path=tmp_path / "storage", on_existing="overwrite")
    trainer = turnout.DataParallelTrainer(
        lambda: turnout.report({}, Checkpoint(source)), scaling_config=ScalingConfig(num_workers=0), run_config=config
    )
    with (
        meanwhile("commit.after_release", lambda: begin_newer(run)),
        pytest.raises(CheckpointError, match="superseded by attempt 2"),
    ):
        trainer.fit()
    assert len(committed(run)) == 2
