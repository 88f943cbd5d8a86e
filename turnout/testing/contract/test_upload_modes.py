"""When `report` returns, who copies, and what the caller may do with its folder, on every track."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import turnout
import turnout.collective
from turnout import (
    Checkpoint,
    CheckpointConfig,
    CheckpointError,
    CheckpointUploadMode,
    RunConfig,
    StorageError,
    UsageError,
    WorkerGroupError,
)
from turnout.testing.contract.helpers import Recorder, rank, text_in
from turnout.testing.tracks import Track

SYNC, ASYNC, NO_UPLOAD = CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC, CheckpointUploadMode.NO_UPLOAD


def stored(tmp_path: Path, **arguments: Any) -> RunConfig:
    return RunConfig(name="run", storage_path=tmp_path / "storage", **arguments)


def folder(parent: Path, step: int) -> str:
    path = parent / f"local-{step}-of-rank-{rank()}"
    path.mkdir()
    (path / "step").write_text(str(step))
    return str(path)


@pytest.mark.parametrize(
    ("mode", "delete", "stays"),
    [(SYNC, None, True), (SYNC, True, False), (ASYNC, None, False), (ASYNC, True, False), (ASYNC, False, True)],
)
def test_the_callers_folder_is_removed_when_the_mode_or_the_call_says_so(
    track: Track, tmp_path: Path, mode: CheckpointUploadMode, delete: bool | None, stays: bool
) -> None:
    def train() -> list[bool]:
        exists = []
        for step in range(2):
            path = folder(tmp_path, step)
            turnout.report(
                {"i": step},
                Checkpoint(path),
                checkpoint_upload_mode=mode,
                delete_local_checkpoint_after_upload=delete,
            )
            exists.append(os.path.exists(path))
        return exists

    result = track.fit(train, run_config=stored(tmp_path))
    assert result.return_values == track.on_every_rank([stays, stays])
    assert [text_in(checkpoint, "step") for checkpoint, _ in result.best_checkpoints or ()] == ["0", "1"]


def test_an_async_report_whose_folder_stays_may_be_written_to_at_once(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        path = folder(tmp_path, 0)
        for step in range(3):
            Path(path, "step").write_text(f"version {step}")
            turnout.report(
                {"i": step},
                Checkpoint(path),
                checkpoint_upload_mode=ASYNC,
                delete_local_checkpoint_after_upload=False,
            )
        Path(path, "step").write_text("spoilt")

    result = track.fit(train, run_config=stored(tmp_path))
    texts = [text_in(checkpoint, "step") for checkpoint, _ in result.best_checkpoints or ()]
    assert texts == ["version 0", "version 1", "version 2"]


def test_an_async_report_whose_folder_the_caller_removes_at_once_is_whole(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        path = folder(tmp_path, 0)
        turnout.report({}, Checkpoint(path), checkpoint_upload_mode=ASYNC)
        shutil.rmtree(path, ignore_errors=True)

    assert text_in(track.fit(train, run_config=stored(tmp_path)).checkpoint, "step") == "0"


class Gate:
    """An upload function that waits until it is let through; each rank makes one of its own."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.names: list[str] = []

    def __call__(self, checkpoint: Checkpoint, name: str) -> Checkpoint:
        self.entered.set()
        assert self.opened.wait(30)
        self.names.append(name)
        target = turnout.get_context().get_storage().checkpoint_path(name)
        shutil.copytree(checkpoint.path, target, dirs_exist_ok=True)
        return Checkpoint(target)


def test_a_metrics_only_report_never_waits_for_an_upload(track: Track, tmp_path: Path) -> None:
    recorder = Recorder()

    def train() -> int:
        path, gate = folder(tmp_path, 0), Gate()
        turnout.report({"i": 0}, Checkpoint(path), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=gate)
        turnout.report({"i": 1})
        assert turnout.get_checkpoint() is None
        gate.opened.set()
        return len(turnout.get_all_reported_checkpoints())

    result = track.fit(train, run_config=stored(tmp_path, callbacks=[recorder]))
    assert result.return_values == track.on_every_rank(1)
    assert result.metrics == {"i": 1}
    # A report whose checkpoint is on its way is told of once that can be read.
    assert [(metrics[0]["i"], texts) for metrics, texts in recorder.reports] == [(1, None), (0, {"step": "0"})]
    assert list(result.metrics_dataframe["i"]) == [0, 1]


def test_pending_uploads_are_bounded_and_commit_in_order(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        for step in range(6):
            mode = ASYNC if step % 3 else SYNC
            turnout.report({"i": step}, Checkpoint(folder(tmp_path, step)), checkpoint_upload_mode=mode)

    config = CheckpointConfig(max_pending_uploads=2)
    result = track.fit(train, run_config=stored(tmp_path, checkpoint_config=config))
    assert [metrics["i"] for _, metrics in result.best_checkpoints or ()] == list(range(6))


def test_an_upload_that_fails_is_raised_by_the_next_report_that_carries_a_checkpoint(
    track: Track, tmp_path: Path
) -> None:
    def fails(checkpoint: Checkpoint, name: str) -> Checkpoint:
        raise ConnectionError("the uplink is down")

    def train() -> None:
        arguments: dict[str, Any] = {"checkpoint_upload_mode": ASYNC, "checkpoint_upload_fn": fails}
        turnout.report({"i": 0}, Checkpoint(folder(tmp_path, 0)), **arguments)
        turnout.get_all_reported_checkpoints()
        with pytest.raises(ConnectionError, match="uplink") as caught:
            turnout.report({"i": 1}, Checkpoint(folder(tmp_path, 1)))
        assert "earlier ASYNC report" in "".join(caught.value.__notes__)
        turnout.report({"i": 2}, Checkpoint(folder(tmp_path, 2)))

    result = track.fit(train, run_config=stored(tmp_path))
    assert [metrics["i"] for _, metrics in result.best_checkpoints or ()] == [2]


def test_an_upload_that_fails_after_the_last_report_fails_the_run(track: Track, tmp_path: Path) -> None:
    def fails(checkpoint: Checkpoint, name: str) -> Checkpoint:
        raise ConnectionError("the uplink is down")

    def train() -> None:
        turnout.report({}, Checkpoint(folder(tmp_path, 0)), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=fails)

    with pytest.raises(ConnectionError, match="uplink") as caught:
        track.fit(train, run_config=stored(tmp_path))
    assert isinstance(caught.value, WorkerGroupError)


def test_a_run_that_raises_waits_for_its_upload_and_keeps_its_own_error(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        path, gate = folder(tmp_path, 0), Gate()
        turnout.report({"i": 0}, Checkpoint(path), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=gate)
        gate.entered.wait()
        threading.Timer(0.05, gate.opened.set).start()
        raise ValueError("the run's own")

    with pytest.raises(ValueError, match="the run's own"):
        track.fit(train, run_config=stored(tmp_path))
    assert turnout.Result.from_path(tmp_path / "storage" / "run").metrics == {"i": 0}


def test_an_upload_function_says_where_it_put_the_files(track: Track, tmp_path: Path) -> None:
    def train() -> list[str]:
        path, gate = folder(tmp_path, 0), Gate()
        gate.opened.set()
        turnout.report({"i": 0}, Checkpoint(path), checkpoint_dir_name="named", checkpoint_upload_fn=gate)
        return gate.names

    result = track.fit(train, run_config=stored(tmp_path))
    assert result.return_values == track.on_every_rank(["named"])
    assert text_in(result.checkpoint, "step") == "0"


@pytest.mark.parametrize("returned", [None, "path", 3])
def test_an_upload_function_that_returns_no_checkpoint_is_refused(track: Track, tmp_path: Path, returned: Any) -> None:
    def train() -> None:
        path = folder(tmp_path, 0)
        turnout.report({}, Checkpoint(path), checkpoint_upload_fn=lambda checkpoint, name: returned)

    with pytest.raises(UsageError, match="checkpoint_upload_fn"):
        track.fit(train, run_config=stored(tmp_path))


def test_files_that_are_said_to_be_in_place_and_are_not_are_refused(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        turnout.report({}, Checkpoint(folder(tmp_path, 0)), checkpoint_upload_mode=NO_UPLOAD)

    with pytest.raises(UsageError, match="NO_UPLOAD"):
        track.fit(train, run_config=stored(tmp_path))


@pytest.mark.parametrize(
    "arguments",
    [{"delete_local_checkpoint_after_upload": True}, {"checkpoint_upload_fn": lambda checkpoint, name: checkpoint}],
    ids=["delete", "upload_fn"],
)
def test_what_makes_no_sense_for_files_in_place_is_refused(
    track: Track, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    def train() -> None:
        path = turnout.get_context().get_storage().checkpoint_path(f"of-rank-{rank()}")
        Path(path, "model").touch()
        with pytest.raises(UsageError, match="NO_UPLOAD"):
            turnout.report({}, Checkpoint(path), checkpoint_upload_mode=NO_UPLOAD, **arguments)
        assert os.path.exists(os.path.join(path, "model"))

    track.fit(train, run_config=stored(tmp_path))


def test_storage_that_refuses_is_a_storage_error_on_the_calls_own_line(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        path = turnout.get_context().get_storage().path
        turnout.report({"i": 0}, Checkpoint(folder(tmp_path, 0)))
        if rank() == 0:
            shutil.rmtree(path)
            Path(path).write_text("a file in the way")
        turnout.collective.barrier()
        try:
            # The others may be told by rank 0 that it could not store its part.
            with pytest.raises(StorageError if rank() == 0 else (StorageError, CheckpointError), match="run"):
                turnout.report({"i": 1}, Checkpoint(folder(tmp_path, 1)))
        finally:
            if rank() == 0:
                os.remove(path)

    with pytest.raises(StorageError, match=r"run\.json is gone"):
        track.fit(train, run_config=stored(tmp_path))


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_an_upload_function_that_reports_a_checkpoint_itself_is_refused(
    track: Track, tmp_path: Path, mode: CheckpointUploadMode
) -> None:
    def reports(checkpoint: Checkpoint, name: str) -> Checkpoint:
        turnout.report({}, Checkpoint(folder(tmp_path, 1)))
        return checkpoint

    def train() -> None:
        turnout.report({}, Checkpoint(folder(tmp_path, 0)), checkpoint_upload_mode=mode, checkpoint_upload_fn=reports)

    with pytest.raises(UsageError, match="inside of the report of another"):
        track.fit(train, run_config=stored(tmp_path))


def test_an_upload_function_that_exits_fails_the_run_and_hangs_nothing(track: Track, tmp_path: Path) -> None:
    def exits(checkpoint: Checkpoint, name: str) -> Checkpoint:
        raise SystemExit(3)

    def train() -> None:
        turnout.report({}, Checkpoint(folder(tmp_path, 0)), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=exits)

    with pytest.raises(RuntimeError, match="SystemExit was raised on the thread turnout-uploads: 3"):
        track.fit(train, run_config=stored(tmp_path))


def test_a_checkpoint_whose_name_is_as_long_as_a_folders_may_be_is_kept(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        for step, mode in enumerate((SYNC, ASYNC)):
            turnout.report(
                {},
                Checkpoint(folder(tmp_path, step)),
                checkpoint_dir_name=str(step) * 255,
                checkpoint_upload_mode=mode,
            )

    result = track.fit(train, run_config=stored(tmp_path))
    assert [text_in(checkpoint, "step") for checkpoint, _ in result.best_checkpoints or ()] == ["0", "1"]


def test_a_forked_child_that_asks_does_not_wait_for_an_upload(track: Track, tmp_path: Path) -> None:
    def train() -> int:
        path, gate = folder(tmp_path, 0), Gate()
        turnout.report({}, Checkpoint(path), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=gate)
        gate.entered.wait()
        pid = os.fork()
        if pid == 0:
            os._exit(len(turnout.get_all_reported_checkpoints()))
        status = os.waitpid(pid, 0)[1]
        gate.opened.set()
        return os.waitstatus_to_exitcode(status)

    assert track.fit(train, run_config=stored(tmp_path)).return_values == track.on_every_rank(0)
