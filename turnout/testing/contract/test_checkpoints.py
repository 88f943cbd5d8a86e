"""What `get_checkpoint` gives, and which folders can be reported, on every track."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import turnout
from turnout import Checkpoint, CheckpointError, FailureConfig, RunConfig, UsageError
from turnout.testing.contract.helpers import report_folder, text_in
from turnout.testing.tracks import Track


def test_there_is_no_checkpoint_before_the_first_report(track: Track) -> None:
    assert track.fit(lambda: turnout.get_checkpoint() is None).return_values == track.on_every_rank(True)


def test_a_checkpoint_from_a_temporary_folder_is_readable_after_the_folder_is_gone(track: Track) -> None:
    def train() -> str:
        report_folder({"step": 0}, {"model": "zero"})
        report_folder({"step": 1}, {"model": "one"})
        return text_in(turnout.get_checkpoint(), "model")

    result = track.fit(train)
    assert result.return_values == track.on_every_rank("one")
    assert text_in(result.checkpoint, "model") == "one"


def test_the_next_attempt_resumes_from_the_last_checkpoint(retrying_track: Track) -> None:
    def train() -> int:
        checkpoint = turnout.get_checkpoint()
        start = 0 if checkpoint is None else int(text_in(checkpoint, "step")) + 1
        for step in range(start, 4):
            if step == 2 and checkpoint is None:
                raise RuntimeError("killed at step 2")
            report_folder({"step": step}, {"step": str(step)})
        return start

    run_config = RunConfig(failure_config=FailureConfig(max_failures=1))
    result = retrying_track.fit(train, run_config=run_config)
    assert result.return_values == retrying_track.on_every_rank(2)
    assert text_in(result.checkpoint, "step") == "3"


def test_a_run_starts_from_the_checkpoint_that_it_is_given(track: Track, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("given")

    def train() -> tuple[str, str]:
        before = text_in(turnout.get_checkpoint(), "model")
        report_folder({}, {"model": "own"})
        return before, text_in(turnout.get_checkpoint(), "model")

    result = track.fit(train, resume_from_checkpoint=Checkpoint(tmp_path))
    assert result.return_values == track.on_every_rank(("given", "own"))


def test_a_wrong_consistency_mode_is_refused(track: Track) -> None:
    def train() -> None:
        with pytest.raises(UsageError, match="consistency_mode='COMMITTED'"):
            turnout.get_all_reported_checkpoints("COMMITTED")  # type: ignore[arg-type]

    track.fit(train)


def test_a_checkpoint_name_that_was_given_before_is_refused_and_the_first_is_untouched(track: Track) -> None:
    def train() -> str:
        report_folder({}, {"model": "first"}, checkpoint_dir_name="epoch-1")
        with pytest.raises(UsageError, match="checkpoint_dir_name='epoch-1' was given already"):
            report_folder({}, {"model": "second"}, checkpoint_dir_name="epoch-1")
        checkpoint = turnout.get_checkpoint()
        assert checkpoint is not None
        assert os.path.basename(checkpoint.path) == "epoch-1"
        return text_in(checkpoint, "model")

    assert track.fit(train).return_values == track.on_every_rank("first")


def test_folders_names_and_links_of_every_kind_are_kept(track: Track, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "with space ü").write_text("unicode")
    (source / "zero").touch()
    (tmp_path / "outside").write_text("linked")
    (source / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "alias").symlink_to(source)

    def train() -> None:
        turnout.report({}, Checkpoint(tmp_path / "alias"))

    checkpoint = track.fit(train).checkpoint
    assert text_in(checkpoint, "with space ü") == "unicode"
    assert text_in(checkpoint, "zero") == ""
    assert text_in(checkpoint, "link") == "linked"


def test_what_cannot_be_copied_is_refused_with_its_path(track: Track, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def train() -> None:
        with pytest.raises(CheckpointError, match="pipe"):
            turnout.report({}, Checkpoint(tmp_path))

    track.fit(train)


def test_the_callers_folder_is_left_as_it_was(track: Track, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    result = track.fit(lambda: turnout.report({}, Checkpoint(tmp_path)))
    (tmp_path / "model").write_text("changed")
    assert text_in(result.checkpoint, "model") == "mine"
