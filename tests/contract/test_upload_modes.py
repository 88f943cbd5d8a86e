"""When `report` returns, who copies, and what the caller may do with its folder, on every track."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.contract.test_stored_runs import Recorder, stored
from tests.contract.tracks import Track, text_in
from turnout import Checkpoint, CheckpointConfig, CheckpointUploadMode, StorageError, UsageError, WorkerGroupError

SYNC, ASYNC, NO_UPLOAD = CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC, CheckpointUploadMode.NO_UPLOAD


def folder(parent: Path, step: int) -> str:
    path = parent / f"local-{step}"
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
    assert result.return_value == [stays, stays]
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
    """An upload function that waits until it is let through."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.names: list[str] = []

    def __call__(self, checkpoint: Checkpoint, name: str) -> Checkpoint:
        self.entered.set()
        assert self.opened.wait(30)
        self.names.append(name)
        target = turnout_storage_path(checkpoint, name)
        return Checkpoint(target)


def turnout_storage_path(checkpoint: Checkpoint, name: str) -> str:
    """Where the run keeps ``name``: beside the staged folder that an upload function is handed."""
    target = os.path.join(STORAGE["path"], "run", "checkpoints", name)
    shutil.copytree(checkpoint.path, target, dirs_exist_ok=True)
    return target


STORAGE: dict[str, str] = {}


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    STORAGE["path"] = str(tmp_path / "storage")
    return Gate()


def test_a_metrics_only_report_never_waits_for_an_upload(track: Track, tmp_path: Path, gate: Gate) -> None:
    recorder = Recorder()

    def train() -> list[int]:
        path = folder(tmp_path, 0)
        turnout.report({"i": 0}, Checkpoint(path), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=gate)
        turnout.report({"i": 1})
        counts = [len(recorder.reports)]
        assert turnout.get_checkpoint() is None
        gate.opened.set()
        assert len(turnout.get_all_reported_checkpoints()) == 1
        counts.append(len(recorder.reports))
        return counts

    result = track.fit(train, run_config=stored(tmp_path, callbacks=[recorder]))
    assert result.return_value == [1, 2]
    assert result.metrics == {"i": 1}
    # A report whose checkpoint is on its way is told of once that can be read.
    assert recorder.reports == [({"i": 1}, None), ({"i": 0}, "0")]
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


def test_a_run_that_raises_waits_for_its_upload_and_keeps_its_own_error(
    track: Track, tmp_path: Path, gate: Gate
) -> None:
    def train() -> None:
        path = folder(tmp_path, 0)
        turnout.report({"i": 0}, Checkpoint(path), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=gate)
        gate.entered.wait()
        threading.Timer(0.05, gate.opened.set).start()
        raise ValueError("the run's own")

    with pytest.raises(ValueError, match="the run's own"):
        track.fit(train, run_config=stored(tmp_path))
    assert turnout.Result.from_path(tmp_path / "storage" / "run").metrics == {"i": 0}


def test_an_upload_function_says_where_it_put_the_files(track: Track, tmp_path: Path, gate: Gate) -> None:
    gate.opened.set()

    def train() -> None:
        path = folder(tmp_path, 0)
        turnout.report({"i": 0}, Checkpoint(path), checkpoint_dir_name="named", checkpoint_upload_fn=gate)

    result = track.fit(train, run_config=stored(tmp_path))
    assert gate.names == ["named"]
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
        path = turnout.get_context().get_storage().checkpoint_path("named")
        Path(path, "model").touch()
        with pytest.raises(UsageError, match="NO_UPLOAD"):
            turnout.report({}, Checkpoint(path), checkpoint_upload_mode=NO_UPLOAD, **arguments)
        assert os.path.exists(os.path.join(path, "model"))

    track.fit(train, run_config=stored(tmp_path))


def test_storage_that_refuses_is_a_storage_error_on_the_calls_own_line(track: Track, tmp_path: Path) -> None:
    def train() -> None:
        path = turnout.get_context().get_storage().path
        turnout.report({"i": 0}, Checkpoint(folder(tmp_path, 0)))
        shutil.rmtree(path)
        Path(path).write_text("a file in the way")
        try:
            with pytest.raises(StorageError, match="run"):
                turnout.report({"i": 1}, Checkpoint(folder(tmp_path, 1)))
        finally:
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


def test_an_upload_function_finds_its_own_run_while_another_trains_too(track: Track, tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def put(checkpoint: Checkpoint, name: str) -> Checkpoint:
        target = turnout.get_context().get_storage().checkpoint_path(name)
        shutil.copytree(checkpoint.path, target, dirs_exist_ok=True)
        return Checkpoint(target)

    def train(config: dict[str, int]) -> None:
        both.wait()
        path = folder(tmp_path, config["step"])
        turnout.report({}, Checkpoint(path), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=put)
        turnout.get_all_reported_checkpoints()
        both.wait()

    results: dict[int, turnout.Result] = {}

    def run(step: int) -> None:
        run_config = stored(tmp_path, name=f"run-{step}")
        results[step] = track.fit(train, train_loop_config={"step": step}, run_config=run_config)

    threads = [threading.Thread(target=run, args=(step,)) for step in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {step: text_in(result.checkpoint, "step") for step, result in results.items()} == {0: "0", 1: "1"}


def test_a_forked_child_that_asks_does_not_wait_for_an_upload(track: Track, tmp_path: Path, gate: Gate) -> None:
    def train() -> int:
        path = folder(tmp_path, 0)
        turnout.report({}, Checkpoint(path), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=gate)
        gate.entered.wait()
        pid = os.fork()
        if pid == 0:
            os._exit(len(turnout.get_all_reported_checkpoints()))
        status = os.waitpid(pid, 0)[1]
        gate.opened.set()
        return os.waitstatus_to_exitcode(status)

    assert track.fit(train, run_config=stored(tmp_path)).return_value == 0


def test_a_retry_does_not_wait_for_an_upload_that_was_given_up(
    track: Track, tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> str:
        if gate.entered.is_set():
            gate.opened.set()
            return "second"
        path = folder(tmp_path, 0)
        turnout.report({}, Checkpoint(path), checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=gate)
        gate.entered.wait()
        raise RuntimeError("first")

    run_config = stored(
        tmp_path,
        checkpoint_config=CheckpointConfig(drain_timeout_s=0.05),
        failure_config=turnout.FailureConfig(max_failures=1),
    )
    threads = set(threading.enumerate())
    assert track.fit(train, run_config=run_config).return_value == "second"
    assert "hangs, and is left behind" in caplog.text
    for thread in set(threading.enumerate()) - threads:
        thread.join()
