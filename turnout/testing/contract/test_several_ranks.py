"""What holds between ranks, on the tracks that have several."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import turnout
import turnout.collective
from turnout import CheckpointUploadMode, FailureConfig, RunConfig, UsageError, WorkerGroupError
from turnout.testing.contract.helpers import Recorder, is_first_time, rank, report_folder, text_in, texts_in
from turnout.testing.tracks import Track


def stored(tmp_path: Path, **arguments: Any) -> RunConfig:
    return RunConfig(name="run", storage_path=tmp_path / "storage", **arguments)


def names_in(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "storage" / "run" / "checkpoints"))


def test_a_barrier_lets_nobody_through_before_all_have_come(group_track: Track, tmp_path: Path) -> None:
    def train() -> list[int]:
        seen = []
        for step in range(20):
            (tmp_path / f"{step}-{rank()}").touch()
            turnout.collective.barrier()
            seen.append(len(list(tmp_path.glob(f"{step}-*"))))
        return seen

    size = group_track.world_size
    assert group_track.fit(train).return_values == group_track.on_every_rank([size] * 20)


def test_a_stored_result_has_the_return_values_of_all_ranks(group_track: Track, tmp_path: Path) -> None:
    result = group_track.fit(lambda: {"rank": rank()}, run_config=stored(tmp_path))
    assert result.return_values == [{"rank": each} for each in range(group_track.world_size)]
    assert result.return_value == {"rank": 0}


def test_a_return_value_that_does_not_pickle_is_none_with_a_warning(
    group_track: Track, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> object:
        return "fine" if rank() == 0 else threading.Lock()

    result = group_track.fit(train, run_config=stored(tmp_path))
    assert result.return_values == ["fine", None]
    assert "rank 1: its return value is a lock and does not pickle" in caplog.text


def test_the_result_and_the_history_hold_rank_zeros_metrics(group_track: Track, tmp_path: Path) -> None:
    def train() -> None:
        for step in range(3):
            turnout.report({"value": 10 * step + rank()})

    result = group_track.fit(train, run_config=stored(tmp_path))
    assert result.metrics == {"value": 20}
    assert list(result.metrics_dataframe["value"]) == [0, 10, 20]


# -- checkpoints


def test_files_of_all_ranks_are_side_by_side_in_one_checkpoint(group_track: Track, tmp_path: Path) -> None:
    def train() -> dict[str, str]:
        report_folder({}, {f"shard-{rank()}": f"of {rank()}", "model": "the same"})
        checkpoint = turnout.get_checkpoint()
        assert checkpoint is not None
        return texts_in(checkpoint)

    result = group_track.fit(train, run_config=stored(tmp_path))
    shards = {f"shard-{each}": f"of {each}" for each in range(group_track.world_size)}
    assert result.return_values == group_track.on_every_rank({**shards, "model": "the same"})


def test_a_file_that_differs_between_ranks_is_kept_of_each_with_one_warning(
    group_track: Track, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    result = group_track.fit(lambda: report_folder({}, {"model": f"of {rank()}"}), run_config=stored(tmp_path))
    assert result.checkpoint is not None
    assert texts_in(result.checkpoint) == {"model": "of 0", "rank_1/model": "of 1"}
    # A rank of another process logs to its own standard error, which the driver shows.
    assert (caplog.text + capsys.readouterr().out).count("differ from another rank's of the same name") == 1


def test_a_checkpoint_of_one_rank_is_one_of_all_and_the_index_advances_alike(
    group_track: Track, tmp_path: Path
) -> None:
    def train() -> list[str]:
        seen = []
        for step in range(4):
            if step % 2 == rank() or step == 3:
                report_folder({"step": step}, {f"by-{rank()}": str(step)})
            else:
                turnout.report({"step": step})
            turnout.report({"between": step})
            checkpoint = turnout.get_checkpoint()
            assert checkpoint is not None
            seen.append(os.path.basename(checkpoint.path))
        return seen

    result = group_track.fit(train, run_config=stored(tmp_path))
    names = [f"checkpoint_{index:06d}" for index in range(4)]
    assert result.return_values == group_track.on_every_rank(names)
    assert names_in(tmp_path) == names
    texts = [texts_in(checkpoint) for checkpoint, _ in result.best_checkpoints or ()]
    assert texts == [{"by-0": "0"}, {"by-1": "1"}, {"by-0": "2"}, {"by-0": "3", "by-1": "3"}]


def test_a_checkpoint_that_one_rank_cannot_store_is_none_of_any_and_the_ranks_go_on_in_step(
    group_track: Track, tmp_path: Path
) -> None:
    def train() -> str:
        turnout.report({"step": 0})
        missing = turnout.Checkpoint(tmp_path / "missing")
        (tmp_path / "missing").mkdir(exist_ok=True)
        turnout.collective.barrier()
        if rank() == 1:
            os.mkfifo(tmp_path / "missing" / "pipe")
            with pytest.raises(turnout.CheckpointError, match="pipe"):
                turnout.report({"step": 1}, missing)
        else:
            with pytest.raises(turnout.CheckpointError, match=r"rank 1: .*pipe"):
                report_folder({"step": 1}, {"model": "whole"})
        report_folder({"step": 2}, {"model": "two"})
        return text_in(turnout.get_checkpoint(), "model")

    result = group_track.fit(train, run_config=stored(tmp_path))
    assert result.return_values == group_track.on_every_rank("two")
    assert list(result.metrics_dataframe["step"]) == [0, 2]


def test_different_names_for_one_checkpoint_are_an_error_that_tells_them(group_track: Track, tmp_path: Path) -> None:
    def train() -> None:
        report_folder({}, {"model": "m"}, checkpoint_dir_name=f"epoch-{rank()}")

    with pytest.raises(UsageError, match=r"rank 0: 'epoch-0', rank 1: 'epoch-1'"):
        group_track.fit(train, run_config=stored(tmp_path))


def test_different_upload_modes_are_an_error_that_tells_them(group_track: Track, tmp_path: Path) -> None:
    def train() -> None:
        mode = CheckpointUploadMode.SYNC if rank() == 0 else CheckpointUploadMode.ASYNC
        report_folder({}, {"model": "m"}, checkpoint_upload_mode=mode)

    with pytest.raises(UsageError, match=r"different checkpoint_upload_modes \(rank 0: .*SYNC, rank 1: .*ASYNC"):
        group_track.fit(train, run_config=stored(tmp_path))


# -- ranks that are out of step


def test_reports_of_different_number_are_an_error_that_names_ranks_and_counts(
    group_track: Track, tmp_path: Path
) -> None:
    def train() -> None:
        for step in range(3 - rank()):
            turnout.report({"step": step})

    with pytest.raises(WorkerGroupError, match=r"rank 0 waits in report #3.*rank 1 has returned after 2 report"):
        group_track.fit(train, run_config=stored(tmp_path))


def test_ranks_that_do_different_things_are_an_error_that_tells_what_each_does(
    group_track: Track, tmp_path: Path
) -> None:
    def train() -> None:
        if rank() == 0:
            turnout.collective.barrier()
        else:
            turnout.report({"x": 1})

    with pytest.raises(WorkerGroupError, match=r"rank 0 is in barrier #1.*; rank 1 is in report #1"):
        group_track.fit(train, run_config=stored(tmp_path))


def test_a_rank_that_raises_ends_the_wait_of_the_others_and_is_the_cause(group_track: Track, tmp_path: Path) -> None:
    def train() -> None:
        if rank() == 1:
            raise ValueError("real cause")
        turnout.collective.barrier()

    with pytest.raises(ValueError, match="real cause") as caught:
        group_track.fit(train, run_config=stored(tmp_path))
    assert isinstance(caught.value, WorkerGroupError)
    assert type(caught.value.worker_failures[1]) is ValueError
    assert "raised on rank 1" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("leave", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_rank_whose_function_leaves_the_program_is_a_failure_that_says_how(
    group_track: Track, tmp_path: Path, leave: BaseException
) -> None:
    def train() -> None:
        if rank() == 1:
            raise leave
        turnout.collective.barrier()

    how = r"sys\.exit\(3\)" if isinstance(leave, SystemExit) else "KeyboardInterrupt"
    with pytest.raises(WorkerGroupError, match=f"the train function ended in {how}") as caught:
        group_track.fit(train, run_config=stored(tmp_path))
    assert "raised on rank 1" in "\n".join(caught.value.__notes__)


def test_a_report_that_all_ranks_have_made_counts_though_one_fails_right_after_it(
    group_track: Track, tmp_path: Path
) -> None:
    def train() -> None:
        report_folder({"x": 1}, {"model": "m"})
        if rank() == 1:
            raise ValueError("right after")

    for number in range(5):  # where the others are by then is chance
        recorder = Recorder()
        run_config = RunConfig(name=f"run-{number}", storage_path=tmp_path, callbacks=[recorder])
        with pytest.raises(ValueError, match="right after"):
            group_track.fit(train, run_config=run_config)
        assert [metrics for metrics, _ in recorder.reports] == [[{"x": 1}] * group_track.world_size]


def test_all_ranks_go_on_from_the_same_checkpoint_after_one_has_failed(retrying_track: Track, tmp_path: Path) -> None:
    def train() -> int:
        checkpoint = turnout.get_checkpoint()
        start = 0 if checkpoint is None else int(text_in(checkpoint, "step")) + 1
        fails = is_first_time(tmp_path)
        for step in range(start, 4):
            if fails and step == 2 and rank() == turnout.get_context().get_world_size() - 1:
                raise RuntimeError("once")
            report_folder({"step": step}, {"step": str(step)})
        return start

    run_config = stored(tmp_path, failure_config=FailureConfig(max_failures=1))
    result = retrying_track.fit(train, run_config=run_config)
    assert result.return_values == retrying_track.on_every_rank(2)
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3]
