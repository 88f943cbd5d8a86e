"""Files that changed behind a run's back: noticed when it goes on, named in a warning, and the one before is taken."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.lane import Lane, Tally
from turnout.storage.reading import committed

NEWEST = "checkpoint_000003"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def train_4_steps(lane: Lane) -> Path:
    """Returns the newest checkpoint's folder."""
    train(lane, 4)
    assert lane.audit().steps == [0, 1, 2, 3]
    return lane.path / "checkpoints" / NEWEST


def go_on_from(lane: Lane, step: int, num_steps: int = 2) -> None:
    lane.expects(step)
    train(lane, num_steps)
    assert lane.audit().newest == step + num_steps


def train(lane: Lane, num_steps: int) -> None:
    """Without sealing the history, which takes longer than the training."""
    assert lane.live(num_steps=num_steps, is_killed=True) < 0, lane.output


@pytest.mark.parametrize("file", ["model.bin", "optimizer/state.bin", ".turnout.json"])
@pytest.mark.parametrize("damage", [flip, halve, empty, grow, os.remove, become_folder])
def test_a_damaged_file_of_the_newest_checkpoint_is_named_and_the_one_before_is_taken(
    lane: Lane, damage: Callable[[Path], None], file: str
) -> None:
    folder = train_4_steps(lane)
    damage(folder / file)
    go_on_from(lane, 2)
    if (damage, file) == (os.remove, ".turnout.json"):
        assert not folder.exists()  # without its record it is no checkpoint, and cleaned up as what a crash left
    else:
        assert f"{folder / file}" in lane.output
        assert "skipped" in lane.output
        assert folder.with_name(f"{NEWEST}.bad").is_dir()


def test_if_two_are_damaged_the_one_before_both_is_taken(lane: Lane) -> None:
    folder = train_4_steps(lane)
    flip(folder / "model.bin")
    halve(folder.with_name("checkpoint_000002") / "optimizer" / "state.bin")
    go_on_from(lane, 1)
    assert str(folder / "model.bin") in lane.output
    assert str(folder.with_name("checkpoint_000002") / "optimizer" / "state.bin") in lane.output


def test_if_all_are_damaged_the_run_begins_anew_and_says_why(lane: Lane) -> None:
    folder = train_4_steps(lane)
    for path in folder.parent.iterdir():
        flip(path / "model.bin")
    go_on_from(lane, -1, num_steps=5)
    assert lane.output.count("skipped") == 4


def test_a_damaged_checkpoint_that_is_not_the_newest_is_not_gone_on_from_either(lane: Lane) -> None:
    folder = train_4_steps(lane)
    shutil.rmtree(folder)
    flip(folder.with_name("checkpoint_000002") / "model.bin")
    go_on_from(lane, 1)


@pytest.mark.parametrize("damage", [halve, empty, os.remove])
@pytest.mark.parametrize("file", ["run.json", "lease.json"])
def test_a_damaged_file_of_the_run_costs_no_checkpoint(lane: Lane, damage: Callable[[Path], None], file: str) -> None:
    folder = train_4_steps(lane)
    damage(folder.parents[1] / file)
    go_on_from(lane, 3)


@pytest.mark.parametrize("num_to_keep", [None, 2])
def test_damage_after_damage_is_survived(tmp_path: Path, tally: Tally, num_to_keep: int | None) -> None:
    lane = Lane(tmp_path, tally, num_to_keep=num_to_keep)
    train(lane, 4)
    lane.audit()
    for newest in (3, 4, 5):
        folder = lane.run.checkpoints / committed(lane.run)[-1].name
        flip(Path(folder.path, "model.bin"))
        go_on_from(lane, newest - 1)
