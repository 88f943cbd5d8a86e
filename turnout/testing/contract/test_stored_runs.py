"""What a run with a storage path keeps, resumes and gives back, on every track."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

import turnout
import turnout.collective
from turnout import (
    Checkpoint,
    CheckpointConfig,
    CheckpointConsistencyMode,
    CheckpointNotFoundError,
    FailureConfig,
    ReportedCheckpointStatus,
    Result,
    RunConfig,
    StorageError,
    UsageError,
    ValidationConfig,
    ValidationTaskConfig,
    WorkerGroupError,
)
from turnout.testing.contract.helpers import Recorder, is_first_time, rank, report_folder, text_in, texts_in
from turnout.testing.tracks import Track


def stored(tmp_path: Path, name: str = "run", **arguments: Any) -> RunConfig:
    return RunConfig(name=name, storage_path=tmp_path / "storage", **arguments)


def counts(config: dict[str, Any]) -> int:
    """Report 0, 1, 2 with a checkpoint each and 99 without; raise before the step ``fail_at``, once a run."""
    checkpoint = turnout.get_checkpoint()
    start = 0 if checkpoint is None else int(text_in(checkpoint, "step")) + 1
    for step in range(start, config.get("steps", 3)):
        if step == config.get("fail_at"):
            raise RuntimeError(f"fails at {step}")
        report_folder({"i": step}, {"step": str(step)})
    turnout.report({"i": 99})
    return start


def test_d01_the_result_holds_the_last_metrics_the_history_the_checkpoint_and_the_path(
    track: Track, tmp_path: Path
) -> None:
    def train() -> int:
        for step in range(3):
            report_folder({"i": step}, {f"step-of-rank-{rank()}": str(step)})
        turnout.report({"i": 99})
        return rank() + 100

    result = track.fit(train, run_config=stored(tmp_path))
    assert result.metrics == {"i": 99}
    assert list(result.metrics_dataframe["i"]) == [0, 1, 2, 99]
    assert result.checkpoint is not None
    assert texts_in(result.checkpoint) == {f"step-of-rank-{each}": "2" for each in range(track.world_size)}
    assert result.path == str(tmp_path / "storage" / "run")
    assert result.return_value == 100
    assert result.return_values == [100 + each for each in range(track.world_size)]


def test_d02_a_run_of_the_same_name_goes_on_from_its_newest_checkpoint(track: Track, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="fails at 3"):
        track.fit(counts, train_loop_config={"steps": 6, "fail_at": 3}, run_config=stored(tmp_path))
    result = track.fit(counts, train_loop_config={"steps": 6}, run_config=stored(tmp_path))
    assert result.return_values == track.on_every_rank(3)
    assert list(result.metrics_dataframe["i"]) == [0, 1, 2, 3, 4, 5, 99]


def test_d02_an_existing_run_is_refused_before_the_function_is_entered(track: Track, tmp_path: Path) -> None:
    track.fit(counts, train_loop_config={}, run_config=stored(tmp_path, on_existing="error"))

    def never() -> None:
        raise AssertionError("entered")

    with pytest.raises(UsageError, match=r"run 'run' exists already.*'resume'.*'overwrite'"):
        track.fit(never, run_config=stored(tmp_path, on_existing="error"))


def test_d02_overwrite_starts_anew_and_keeps_the_old_run_until_its_own_first_commit(
    track: Track, tmp_path: Path
) -> None:
    track.fit(counts, train_loop_config={}, run_config=stored(tmp_path))

    def fails_first() -> None:
        assert turnout.get_checkpoint() is None
        raise RuntimeError("before the first commit")

    with pytest.raises(RuntimeError, match="before the first commit"):
        track.fit(fails_first, run_config=stored(tmp_path, on_existing="overwrite"))
    assert text_in(Result.from_path(tmp_path / "storage" / "run").checkpoint, "step") == "2"

    result = track.fit(counts, train_loop_config={"steps": 1}, run_config=stored(tmp_path, on_existing="overwrite"))
    assert result.return_value == 0
    assert [metrics["i"] for _, metrics in result.best_checkpoints or ()] == [0]
    assert list(result.metrics_dataframe["i"]) == [0, 99]
    assert len(os.listdir(tmp_path / "storage" / "run" / "checkpoints")) == 1


def test_overwriting_a_run_that_named_its_checkpoints_itself(track: Track, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for name in ("first", "second"):
            report_folder({"text": config["text"]}, {"model": config["text"]}, checkpoint_dir_name=name)

    track.fit(train, train_loop_config={"text": "old"}, run_config=stored(tmp_path))
    run_config = stored(tmp_path, on_existing="overwrite")
    result = track.fit(train, train_loop_config={"text": "new"}, run_config=run_config)
    assert [text_in(checkpoint, "model") for checkpoint, _ in result.best_checkpoints or ()] == ["new", "new"]


def test_entering_a_finished_run_again_is_warned_of(
    track: Track, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        result = track.fit(counts, train_loop_config={}, run_config=stored(tmp_path))
    assert result.return_value == 3
    assert caplog.text.count("has finished already, and is entered again") == 1


def test_a_retry_goes_on_from_the_newest_commit(retrying_track: Track, tmp_path: Path) -> None:
    def train() -> int:
        checkpoint = turnout.get_checkpoint()
        if checkpoint is None:
            report_folder({"i": 0}, {"step": "0"})
            raise RuntimeError("once")
        return int(text_in(checkpoint, "step"))

    run_config = stored(tmp_path, failure_config=FailureConfig(max_failures=1))
    result = retrying_track.fit(train, run_config=run_config)
    assert result.return_values == retrying_track.on_every_rank(0)
    attempts = json.loads((tmp_path / "storage" / "run" / "run.json").read_text())["attempts"]
    assert [each["cause"] for each in attempts] == ["start", "RuntimeError: once"]


def test_a_retry_whose_only_checkpoint_is_damaged_begins_anew(retrying_track: Track, tmp_path: Path) -> None:
    def train() -> bool:
        if is_first_time(tmp_path):
            report_folder({"i": 0}, {"step": "0"})
            if rank() == 0:
                os.remove(tmp_path / "storage" / "run" / "checkpoints" / "checkpoint_000000" / "step")
            turnout.collective.barrier()
            raise RuntimeError("once")
        return turnout.get_checkpoint() is None

    run_config = stored(tmp_path, failure_config=FailureConfig(max_failures=1))
    result = retrying_track.fit(train, run_config=run_config)
    assert result.return_values == retrying_track.on_every_rank(True)


def test_resume_from_checkpoint_counts_only_while_the_run_has_none_of_its_own(track: Track, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "step").write_text("7")
    arguments: dict[str, Any] = {"resume_from_checkpoint": Checkpoint(given), "run_config": stored(tmp_path)}
    assert track.fit(counts, train_loop_config={"steps": 9}, **arguments).return_value == 8
    assert track.fit(counts, train_loop_config={"steps": 9}, **arguments).return_value == 9


def test_get_checkpoint_is_the_newest_that_is_committed(track: Track, tmp_path: Path) -> None:
    def train() -> list[str]:
        seen = []
        for step in range(2):
            report_folder({"i": step}, {"step": str(step)})
            turnout.report({"between": step})
            seen.append(text_in(turnout.get_checkpoint(), "step"))
        return seen

    result = track.fit(train, run_config=stored(tmp_path))
    assert result.return_values == track.on_every_rank(["0", "1"])


def test_all_reported_checkpoints_are_the_committed_ones_oldest_first(track: Track, tmp_path: Path) -> None:
    def train() -> list[Any]:
        for step in range(3):
            report_folder({"i": step}, {"step": str(step)})
        return [
            (each.metrics, each.status, text_in(each.checkpoint, "step"))
            for each in turnout.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
        ]

    committed = ReportedCheckpointStatus.COMMITTED
    expected = [({"i": step}, committed, str(step)) for step in range(3)]
    assert track.fit(train, run_config=stored(tmp_path)).return_values == track.on_every_rank(expected)


def test_the_storage_handle_gives_a_place_for_files_that_are_written_there(track: Track, tmp_path: Path) -> None:
    def train() -> str:
        storage = turnout.get_context().get_storage()
        folder = storage.checkpoint_path("in-place")
        Path(folder, "model").write_text("written there")
        turnout.report({}, Checkpoint(folder), checkpoint_upload_mode=turnout.CheckpointUploadMode.NO_UPLOAD)
        return storage.path

    result = track.fit(train, run_config=stored(tmp_path))
    assert result.return_value == result.path
    assert text_in(result.checkpoint, "model") == "written there"


def test_a_name_that_a_commit_has_is_refused_and_the_first_is_untouched(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        report_folder({}, {"model": "first"}, checkpoint_dir_name="epoch-1")
        with pytest.raises(UsageError, match="'epoch-1' was given already"):
            report_folder({}, {"model": "second"}, checkpoint_dir_name="epoch-1")
        turnout.report({"after": 1})

    result = track.fit(train, run_config=stored(tmp_path))
    assert text_in(result.checkpoint, "model") == "first"


def test_a_name_is_refused_again_even_when_retention_has_removed_the_first(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        for name in ("a", "b"):
            report_folder({}, {"model": name}, checkpoint_dir_name=name)
        with pytest.raises(UsageError, match="'a' was given already"):
            report_folder({}, {"model": "again"}, checkpoint_dir_name="a")

    result = track.fit(train, run_config=stored(tmp_path, checkpoint_config=CheckpointConfig(num_to_keep=1)))
    assert text_in(result.checkpoint, "model") == "b"


def test_a_name_that_an_earlier_attempt_has_committed_is_refused(retrying_track: Track, tmp_path: Path) -> None:
    def train() -> None:
        report_folder({}, {"model": "m"}, checkpoint_dir_name="epoch-1")
        raise RuntimeError("does not look at get_checkpoint()")

    run_config = stored(tmp_path, failure_config=FailureConfig(max_failures=1))
    with pytest.raises(UsageError, match="'epoch-1' already, of attempt 0"):
        retrying_track.fit(train, run_config=run_config)


def test_the_run_folder_itself_is_refused_as_a_checkpoint(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        path = turnout.get_context().get_storage().path
        for folder in (path, os.path.dirname(path), os.path.join(path, "checkpoints")):
            with pytest.raises(UsageError, match="run's own folder"):
                turnout.report({}, Checkpoint(folder))

    track.fit(train, run_config=stored(tmp_path))


@pytest.mark.parametrize("order", ["max", "min"])
def test_d10_nan_and_missing_scores_are_never_best_and_every_listed_one_exists(
    track: Track, tmp_path: Path, order: str
) -> None:
    def train() -> None:
        for metrics in ({"score": 1.0}, {"score": math.nan}, {"score": 0.5}, {"other": 1}):
            report_folder(metrics, {"model": str(metrics)})

    config = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="score", checkpoint_score_order=order)
    result = track.fit(train, run_config=stored(tmp_path, checkpoint_config=config))
    best = result.best_checkpoints
    assert best is not None
    assert [metrics for _, metrics in best] == [{"other": 1}, {"score": 1.0 if order == "max" else 0.5}]
    assert all(os.path.isdir(checkpoint.path) for checkpoint, _ in best)
    assert len(os.listdir(os.path.join(str(result.path), "checkpoints"))) == 2  # the best, and the newest besides
    assert result.get_best_checkpoint("score", order) == best[-1][0]
    assert text_in(result.checkpoint, "model") == "{'other': 1}"


def test_get_best_checkpoint_says_what_is_wrong(track: Track, tmp_path: Path) -> None:
    result = track.fit(counts, train_loop_config={}, run_config=stored(tmp_path))
    assert text_in(result.get_best_checkpoint("i", "min"), "step") == "0"
    with pytest.raises(UsageError, match="mode='best'"):
        result.get_best_checkpoint("i", "best")
    with pytest.raises(UsageError, match=r"'loss'; their metrics are \['i'\]"):
        result.get_best_checkpoint("loss", "max")
    with pytest.raises(CheckpointNotFoundError, match="lists no checkpoints"):
        Result().get_best_checkpoint("i", "max")


def test_a_run_is_read_back_from_its_folder_alone(track: Track, tmp_path: Path) -> None:
    config = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="i", checkpoint_score_order="min")
    result = track.fit(counts, train_loop_config={}, run_config=stored(tmp_path, checkpoint_config=config))
    again = Result.from_path(tmp_path / "storage" / "run")
    assert (again.metrics, again.checkpoint, again.path) == (result.metrics, result.checkpoint, result.path)
    assert again.best_checkpoints == result.best_checkpoints
    assert again.error is None
    assert again.metrics_dataframe.equals(result.metrics_dataframe)


def test_a_failed_run_is_read_back_with_its_error(track: Track, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="fails at 1"):
        track.fit(counts, train_loop_config={"fail_at": 1}, run_config=stored(tmp_path))
    again = Result.from_path(tmp_path / "storage" / "run")
    assert "RuntimeError: fails at 1" in str(again.error)
    assert again.metrics == {"i": 0}


def test_a_folder_that_holds_no_run_is_said_to_hold_none(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no run"):
        Result.from_path(tmp_path)


def test_metrics_of_every_kind_come_back_as_they_were(track: Track, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"loss": 0.5, "eval": {"top": {"1": 2}}, "tags": ["a"]},
        {"loss": math.nan, "changes": 1},
        {"loss": math.inf, "changes": "text", "none": None},
    ]

    def train() -> None:
        for row in rows:
            turnout.report(row)

    frame = track.fit(train, run_config=stored(tmp_path)).metrics_dataframe
    assert frame["eval/top/1"].iloc[0] == 2
    assert frame["tags"].iloc[0] == ["a"]
    assert math.isnan(frame["loss"].iloc[1])
    assert frame["loss"].iloc[2] == math.inf
    assert list(frame["changes"].iloc[1:]) == [1, "text"]


def test_metrics_that_no_file_holds_well_spoil_no_others(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        turnout.report({"big": 10**5000, "x": 1})
        turnout.report({"half": "\ud800", "x": 2})
        turnout.report({"a/b": 1, "a": {"b": 2}, "x": 3})

    result = track.fit(train, run_config=stored(tmp_path))
    frame = result.metrics_dataframe
    assert list(frame["x"]) == [1, 2, 3]
    assert frame["big"].iloc[0].startswith("not written:")
    assert frame["half"].iloc[1] == r"\ud800"
    assert frame["a/b"].iloc[2] in (1, 2)


def test_a_storage_path_that_cannot_be_written_is_refused_before_the_function_starts(
    track: Track, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=str(tmp_path / "file")):
        track.fit(lambda: None, run_config=RunConfig(name="run", storage_path=tmp_path / "file"))


def test_the_storage_path_of_the_environment_counts(
    track: Track, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TURNOUT_STORAGE_PATH", str(tmp_path / "elsewhere"))
    with caplog.at_level("INFO", logger="turnout"):
        result = track.fit(counts, train_loop_config={}, run_config=RunConfig(name="run"))
    assert result.path == str(tmp_path / "elsewhere" / "run")
    assert f"TURNOUT_STORAGE_PATH={tmp_path}/elsewhere overrides the argument" in caplog.text


def test_a_callback_can_read_the_checkpoint_that_it_is_told_of(track: Track, tmp_path: Path) -> None:
    recorder = Recorder()
    track.fit(counts, train_loop_config={}, run_config=stored(tmp_path, callbacks=[recorder]))
    assert [metrics[0]["i"] for metrics, _ in recorder.reports] == [0, 1, 2, 99]
    assert [texts for _, texts in recorder.reports] == [{"step": "0"}, {"step": "1"}, {"step": "2"}, None]


def score(checkpoint: Checkpoint, factor: int = 1) -> dict[str, int]:
    return {"score": factor * int(text_in(checkpoint, "step"))}


def test_a_validation_merges_its_metrics_into_the_checkpoints(track: Track, tmp_path: Path) -> None:
    def train() -> list[Any]:
        report_folder({"i": 0}, {"step": "3"}, validation=True)
        report_folder({"i": 1}, {"step": "3"}, validation=ValidationTaskConfig(fn_kwargs={"factor": 10}))
        report_folder({"i": 2}, {"step": "3"})
        return [(each.metrics, each.status) for each in turnout.get_all_reported_checkpoints()]

    validation_config = ValidationConfig(score, task_config=ValidationTaskConfig(fn_kwargs={"factor": 2}))
    result = track.fit(train, run_config=stored(tmp_path), validation_config=validation_config)
    validated = ReportedCheckpointStatus.VALIDATED
    expected = [
        ({"i": 0, "score": 6}, validated),
        ({"i": 1, "score": 30}, validated),
        ({"i": 2}, ReportedCheckpointStatus.COMMITTED),
    ]
    assert result.return_values == track.on_every_rank(expected)
    assert text_in(result.get_best_checkpoint("score", "max"), "step") == "3"


def test_a_validation_that_fails_ends_nothing(
    track: Track, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(checkpoint: Checkpoint) -> dict[str, int]:
        raise ValueError("no such metric")

    def train() -> list[Any]:
        report_folder({"i": 0}, {"step": "0"}, validation=True)
        return [each.status for each in turnout.get_all_reported_checkpoints()]

    result = track.fit(train, run_config=stored(tmp_path), validation_config=ValidationConfig(broken))
    assert result.return_values == track.on_every_rank([ReportedCheckpointStatus.VALIDATION_FAILED])
    # A rank of another process logs to its own standard error, which the driver shows.
    assert "ValueError: no such metric" in caplog.text + capsys.readouterr().out


def test_arguments_of_a_validation_that_cannot_be_kept_are_refused(track: Track, tmp_path: Path) -> None:
    task = ValidationTaskConfig(fn_kwargs={"model": object()})
    with pytest.raises(UsageError, match=r"fn_kwargs.*JSON can hold.*'model'"):
        track.fit(
            lambda: report_folder({}, {"m": ""}, validation=task),
            run_config=stored(tmp_path),
            validation_config=ValidationConfig(score),
        )


def test_validation_without_a_validation_config_is_refused(track: Track, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="validation_config=ValidationConfig"):
        track.fit(lambda: report_folder({}, {"m": ""}, validation=True), run_config=stored(tmp_path))


def test_a_report_that_fails_leaves_the_others_and_the_run_can_go_on(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        report_folder({"i": 0}, {"step": "0"})
        folder = tmp_path / f"with-pipe-{rank()}"
        folder.mkdir()
        os.mkfifo(folder / "pipe")
        with pytest.raises(turnout.CheckpointError, match="pipe"):
            turnout.report({"i": 1}, Checkpoint(folder))
        report_folder({"i": 2}, {"step": "2"})

    result = track.fit(train, run_config=stored(tmp_path))
    assert [metrics for _, metrics in result.best_checkpoints or ()] == [{"i": 0}, {"i": 2}]


def test_a_stored_run_that_fails_is_both_errors(track: Track, tmp_path: Path) -> None:
    with pytest.raises(WorkerGroupError) as caught:
        track.fit(counts, train_loop_config={"fail_at": 0}, run_config=stored(tmp_path))
    assert isinstance(caught.value, RuntimeError)
