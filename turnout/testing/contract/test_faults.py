"""Faults that a test injects strike the rank and the step that they name, wherever the function runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import turnout
from turnout import FailureConfig, RunConfig, WorkerGroupError
from turnout.testing.contract.helpers import is_first_time, rank, report_folder, text_in, texts_in
from turnout.testing.faults import Fault, InjectedError
from turnout.testing.tracks import Track


def _train() -> int:
    newest = turnout.get_checkpoint()
    start = 0 if newest is None else int(text_in(newest, "step")) + 1
    for step in range(start, 4):
        report_folder({"step": step}, {"step": str(step)})
    return start


def test_a_fault_strikes_one_rank_at_one_report(track: Track, tmp_path: Path) -> None:
    fault = Fault(point="report", rank=track.world_size - 1, on_hit=3, action="raise", message="the third")

    with pytest.raises(WorkerGroupError, match="the third") as caught:
        track.fit(_train, faults=[fault], run_config=RunConfig(name="run", storage_path=tmp_path))

    assert isinstance(caught.value, InjectedError)
    assert turnout.Result.from_path(tmp_path / "run").metrics == {"step": 1}


def test_a_fault_that_has_struck_does_not_strike_the_next_attempt(retrying_track: Track, tmp_path: Path) -> None:
    fault = Fault(point="report", rank=retrying_track.world_size - 1, on_hit=2, action="raise")
    config = RunConfig(storage_path=tmp_path, failure_config=FailureConfig(max_failures=1))

    result = retrying_track.fit(_train, faults=[fault], run_config=config)

    assert result.return_values == retrying_track.on_every_rank(1)
    assert result.metrics == {"step": 3}


def test_d09_a_rank_that_is_killed_between_its_files_and_the_commit_leaves_no_trace_in_the_checkpoint(
    isolating_track: Track, tmp_path: Path
) -> None:
    def train() -> int:
        attempt = "first" if is_first_time(tmp_path) else "second"
        newest = turnout.get_checkpoint()
        start = 0 if newest is None else int(text_in(newest, "step")) + 1
        for step in range(start, 4):
            report_folder({"step": step}, {"step": str(step), f"{attempt}-{step}-{rank()}": ""})
        return start

    fault = Fault(point="commit.after_upload", rank=1, on_hit=3, action="kill")
    config = RunConfig(name="run", storage_path=tmp_path, failure_config=FailureConfig(max_failures=1))

    result = isolating_track.fit(train, faults=[fault], run_config=config)

    assert result.return_values == isolating_track.on_every_rank(2)
    files = {int(text_in(each, "step")): sorted(texts_in(each)) for each, _ in result.best_checkpoints or ()}
    ranks = range(isolating_track.world_size)
    assert files == {
        step: sorted(["step", *(f"{'first' if step < 2 else 'second'}-{step}-{each}" for each in ranks)])
        for step in range(4)
    }


def test_a_function_with_faults_still_takes_its_config(track: Track) -> None:
    def train(config: dict[str, Any]) -> int:
        number: int = config["number"]
        return number

    fault = Fault(point="nowhere", action="raise")

    assert track.fit(train, faults=[fault], train_loop_config={"number": 3}).return_values == track.on_every_rank(3)
