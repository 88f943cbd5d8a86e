"""What two ranks report, each on its own terms, is one checkpoint or none, and afterwards they are in step."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.storage.helpers import S3, contents
from turnout import (
    Checkpoint,
    CheckpointConfig,
    CheckpointError,
    CheckpointUploadMode,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
    StorageError,
    UsageError,
)
from turnout.collective import barrier, broadcast_from_rank_zero
from turnout.storage.location import StorageLocation
from turnout.storage.reading import committed
from turnout.storage.record import CommitRecord, verify
from turnout.storage.run_folder import RunFolder
from turnout.testing.faults import Fault, armed

SYNC, ASYNC, NO_UPLOAD = CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC, CheckpointUploadMode.NO_UPLOAD


def fit(storage: Path | str, train: Callable[[], Any], **run_config: Any) -> Result:
    config = RunConfig(storage_path=storage, name="run", **run_config)
    scaling = ScalingConfig(num_workers=2, controller="process")
    return DataParallelTrainer(train, scaling_config=scaling, run_config=config).fit()


def rank_here() -> int:
    return turnout.get_context().get_world_rank()


def report(step: int, files: dict[str, str] | None, **arguments: Any) -> None:
    """Report from a folder that is gone when the call returns; None reports metrics alone."""
    if files is None:
        turnout.report({"step": step, "rank": rank_here()})
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        turnout.report({"step": step, "rank": rank_here()}, Checkpoint(folder), **arguments)


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """The class and text of what it raises, as text that travels."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", [])])
    return "", ""


def in_step() -> list[bool]:
    """Whether the ranks meet in this very call, and have the same newest checkpoint."""
    newest = turnout.get_checkpoint()
    path = None if newest is None else newest.path
    return [broadcast_from_rank_zero(path) == path]


def records(storage: Path | str) -> list[CommitRecord]:
    run = RunFolder(StorageLocation.open(storage), "run")
    found = committed(run)
    assert [verify(run.checkpoints / record.name, "full", record) for record in found] == [None] * len(found)
    return found


def files(storage: Path | str, record: CommitRecord) -> dict[str, str]:
    run = RunFolder(StorageLocation.open(storage), "run")
    return {path: data.decode() for path, data in contents(run.checkpoints / record.name).items()}


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_ranks_that_bring_different_files_or_none_make_one_checkpoint_of_what_there_is(
    tmp_path: Path, mode: CheckpointUploadMode
) -> None:
    brought: list[tuple[dict[str, str] | None, dict[str, str] | None]] = [
        ({"a": "0"}, {"b": "1"}),
        ({"a": "0"}, None),
        (None, {"b": "1"}),
        (None, None),
        ({}, {"b": "1"}),
    ]

    def train() -> list[bool]:
        same = []
        for step, each in enumerate(brought):
            report(step, each[rank_here()], **({} if each[rank_here()] is None else {"checkpoint_upload_mode": mode}))
            same += in_step()
        return same

    result = fit(tmp_path, train)
    assert result.return_values == [[True] * 5] * 2
    found = records(tmp_path)
    assert [record.metrics["step"] for record in found] == [0, 1, 2, 4]
    assert [files(tmp_path, record) for record in found] == [
        {"a": "0", "b": "1"},
        {"a": "0"},
        {"b": "1"},
        {"b": "1"},
    ]
    assert [record.index for record in found] == [0, 1, 2, 3]
    assert [record.metrics["rank"] for record in found] == [0] * 4
    assert [[entry.rank for entry in record.files] for record in found] == [[0, 1], [0], [1], [1]]
    assert result.metrics == {"step": 4, "rank": 0}
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_a_file_that_both_ranks_have_is_stored_once_or_under_both_names_if_it_differs(
    tmp_path: Path, mode: CheckpointUploadMode, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        logging.basicConfig()
        report(0, {"model.pt": "the same"}, checkpoint_upload_mode=mode)
        report(1, {"model.pt": f"of rank {rank_here()}"}, checkpoint_upload_mode=mode)

    fit(tmp_path, train)
    first, second = records(tmp_path)
    assert files(tmp_path, first) == {"model.pt": "the same"}
    assert files(tmp_path, second) == {"model.pt": "of rank 0", "rank_1/model.pt": "of rank 1"}
    assert capsys.readouterr().out.count("1 file(s) differ from another rank's") == 1


def test_different_upload_modes_are_refused_on_every_rank_with_each_ranks_own(tmp_path: Path) -> None:
    def train() -> tuple[tuple[str, str], list[bool]]:
        mode = (SYNC, ASYNC)[rank_here()]
        told = refusal(lambda: report(0, {str(rank_here()): ""}, checkpoint_upload_mode=mode))
        report(1, {str(rank_here()): ""})
        return told, in_step()

    for told, same in fit(tmp_path, train).return_values or ():
        assert told[0] == "UsageError"
        assert "rank 0: CheckpointUploadMode.SYNC, rank 1: CheckpointUploadMode.ASYNC" in told[1]
        assert same == [True]
    assert [record.metrics["step"] for record in records(tmp_path)] == [1]


def missing_folder() -> None:
    turnout.report({}, Checkpoint("/no/such/folder"))


def no_number() -> None:
    turnout.report({"loss": object()})


def no_name() -> None:
    report(0, {"b": "1"}, checkpoint_dir_name="../up")


def no_validation() -> None:
    report(0, {"b": "1"}, validation=True)


def with_a_socket() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pipe").symlink_to("/dev/null")
        turnout.report({}, Checkpoint(folder))


def with_a_socket_later() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pipe").symlink_to("/dev/null")
        turnout.report({}, Checkpoint(folder), checkpoint_upload_mode=ASYNC)


@pytest.mark.parametrize("others", ["metrics", "checkpoint"])
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (missing_folder, "CheckpointNotFoundError", "/no/such/folder"),
        (no_number, "UsageError", "loss"),
        (no_name, "UsageError", "../up"),
        (no_validation, "UsageError", "validation_config"),
        (with_a_socket, "CheckpointError", "pipe"),
        (with_a_socket_later, "CheckpointError", "pipe"),
    ],
)
def test_a_report_that_is_refused_on_one_rank_is_none_on_the_other_and_both_go_on_in_step(
    tmp_path: Path, call: Callable[[], None], error: str, text: str, others: str
) -> None:
    mode = ASYNC if call is with_a_socket_later else SYNC

    def train() -> tuple[tuple[str, str], list[bool]]:
        files = {"a": "0"} if others == "checkpoint" else None
        arguments = {} if files is None else {"checkpoint_upload_mode": mode}
        told = refusal(call if rank_here() == 1 else lambda: report(0, files, **arguments))
        report(1, {str(rank_here()): ""})
        return told, in_step()

    result = fit(tmp_path, train)
    assert result.return_values is not None
    (told_0, same_0), (told_1, same_1) = result.return_values
    assert told_1[0] == error
    assert text in told_1[1]
    assert told_0[0] == "CheckpointError"
    assert "rank 1: " in told_0[1]
    assert text in told_0[1]
    assert (same_0, same_1) == ([True], [True])
    assert [(record.metrics["step"], sorted(files(tmp_path, record))) for record in records(tmp_path)] == [
        (1, ["0", "1"])
    ]
    assert list(result.metrics_dataframe["step"]) == [1]
    assert len(StorageLocation.open(tmp_path / "run" / "checkpoints").listing()) == 1, "something is left"


def test_a_name_that_differs_is_refused_on_every_rank_and_one_that_rank_0_alone_gives_holds(tmp_path: Path) -> None:
    def train() -> list[tuple[str, str]]:
        told = [refusal(lambda: report(0, {"a": ""}, checkpoint_dir_name=f"of-{rank_here()}"))]
        told += [refusal(lambda: report(1, {"a": ""}, **({"checkpoint_dir_name": "x"} if rank_here() else {})))]
        report(2, {"a": ""}, checkpoint_dir_name=None if rank_here() else "of-rank-0")
        return told

    for told in fit(tmp_path, train).return_values or ():
        assert [error for error, _ in told] == ["UsageError"] * 2
        assert "rank 0: 'of-0', rank 1: 'of-1'" in told[0][1]
        assert "rank 1: 'x'" in told[1][1]
    assert [record.name for record in records(tmp_path)] == ["of-rank-0"]


def put(checkpoint: Checkpoint, name: str) -> Checkpoint:
    target = turnout.get_context().get_storage().checkpoint_path(name)
    shutil.copytree(checkpoint.path, target, dirs_exist_ok=True)
    return Checkpoint(target)


def fails(checkpoint: Checkpoint, name: str) -> Checkpoint:
    raise ConnectionError("the uplink is down")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_async_upload_that_fails_on_one_rank_is_told_to_both_by_the_next_report(tmp_path: Path, rank: int) -> None:
    def train() -> tuple[list[tuple[str, str]], list[bool]]:
        function = fails if rank_here() == rank else None
        report(0, {str(rank_here()): ""}, checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=function)
        turnout.get_all_reported_checkpoints()
        told = [refusal(lambda: report(1, {str(rank_here()): ""})), refusal(lambda: report(2, None))]
        report(3, {str(rank_here()): ""}, checkpoint_upload_mode=ASYNC)
        return told, in_step()

    result = fit(tmp_path, train)
    assert result.return_values is not None
    for each, (told, same) in enumerate(result.return_values):
        assert [error for error, _ in told] == ["ConnectionError" if each == rank else "CheckpointError", ""]
        assert "the uplink is down" in told[0][1]
        assert "earlier ASYNC report" in told[0][1]
        assert same == [True]
    assert [record.metrics["step"] for record in records(tmp_path)] == [3]


def test_an_async_upload_that_fails_on_one_rank_after_the_last_report_fails_the_run(tmp_path: Path) -> None:
    def train() -> None:
        function = fails if rank_here() == 1 else None
        report(0, {str(rank_here()): ""}, checkpoint_upload_mode=ASYNC, checkpoint_upload_fn=function)

    with pytest.raises((ConnectionError, CheckpointError), match="the uplink is down"):
        fit(tmp_path, train)
    assert records(tmp_path) == []


@pytest.mark.parametrize("slow", [0, 1])
def test_get_checkpoint_is_the_same_on_all_ranks_whoever_hears_first_of_a_background_commit(
    tmp_path: Path, slow: int
) -> None:
    def train() -> tuple[list[bool], str]:
        faults = [Fault(point="commit.after_release", action="delay", delay_s=0.02, times=0)]
        with armed(*(faults if rank_here() == slow else [])):
            same = in_step()
            for step in range(12):
                if step % 3 == 2:
                    report(step, None)
                else:
                    report(step, {str(rank_here()): str(step)}, checkpoint_upload_mode=SYNC if step == 6 else ASYNC)
                time.sleep(0.01 * (step % 4))  # so that reports come before, while and after a commit
                same += in_step()
            turnout.get_all_reported_checkpoints()
            report(12, None)
            newest = turnout.get_checkpoint()
            return same, "" if newest is None else newest.path

    result = fit(tmp_path, train, checkpoint_config=CheckpointConfig(max_pending_uploads=3))
    assert result.return_values is not None
    newest = str(tmp_path / "run" / "checkpoints" / "checkpoint_000007")
    assert result.return_values == [([True] * 13, newest)] * 2
    assert [record.metrics["step"] for record in records(tmp_path)] == [0, 1, 3, 4, 6, 7, 9, 10]


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
@pytest.mark.parametrize("delete", [None, True])
def test_one_folder_that_all_ranks_pass_is_one_checkpoint(
    tmp_path: Path, mode: CheckpointUploadMode, delete: bool | None
) -> None:
    def train() -> list[bool]:
        for step in range(5):
            folder = tmp_path / f"shared-{step}"
            if rank_here() == 0:
                folder.mkdir()
                for number in range(20):
                    (folder / str(number)).write_text(f"{step} {number}")
            barrier()
            turnout.report(
                {"step": step},
                Checkpoint(folder),
                checkpoint_upload_mode=mode,
                delete_local_checkpoint_after_upload=delete,
            )
        return in_step()

    fit(tmp_path / "storage", train)
    found = records(tmp_path / "storage")
    assert [files(tmp_path / "storage", record) for record in found] == [
        {str(number): f"{step} {number}" for number in range(20)} for step in range(5)
    ]


@pytest.mark.parametrize("with_files", [(0, 1), (0,), (1,)])
def test_files_that_ranks_write_in_place_are_one_checkpoint(tmp_path: Path, with_files: tuple[int, ...]) -> None:
    def train() -> list[bool]:
        path = turnout.get_context().get_storage().checkpoint_path("sharded")
        Path(path, f"shard-{rank_here()}").write_text(str(rank_here()))
        checkpoint = Checkpoint(path) if rank_here() in with_files else None
        if checkpoint is None:
            turnout.report({"step": 0})
        else:
            turnout.report({"step": 0}, checkpoint, checkpoint_upload_mode=NO_UPLOAD)
        again = refusal(lambda: turnout.report({"step": 1}, checkpoint or Checkpoint(path), **in_place))
        assert again[0] == ("CheckpointError" if rank_here() else "UsageError"), again
        assert "the run has a checkpoint 'sharded' already" in again[1]
        return in_step()

    in_place: dict[str, Any] = {"checkpoint_upload_mode": NO_UPLOAD}
    result = fit(tmp_path, train)
    assert result.return_values == [[True]] * 2
    (record,) = records(tmp_path)
    assert record.name == "sharded"
    assert files(tmp_path, record) == {"shard-0": "0", "shard-1": "1"}
    assert [(entry.path, entry.checksum) for entry in record.files] == [("shard-0", None), ("shard-1", None)]


@pytest.mark.parametrize("by_function", [(0, 1), (0,), (1,)])
def test_ranks_may_upload_by_functions_of_their_own_or_not(tmp_path: Path, by_function: tuple[int, ...]) -> None:
    def train() -> None:
        function = put if rank_here() in by_function else None
        report(0, {f"of-{rank_here()}": str(rank_here())}, checkpoint_upload_fn=function)
        if rank_here() in by_function:
            report(1, {f"of-{rank_here()}": str(rank_here())}, checkpoint_upload_fn=function)
        else:
            report(1, None)

    fit(tmp_path, train)
    first, second = records(tmp_path)
    assert [entry.path for entry in first.files] == ["of-0", "of-1"]
    assert [entry.checksum is None for entry in first.files] == [rank in by_function for rank in range(2)]
    assert [entry.path for entry in second.files] == [f"of-{rank}" for rank in by_function]


def test_a_storage_that_refuses_one_rank_is_an_error_on_both_and_leaves_nothing(tmp_path: Path) -> None:
    def train() -> tuple[tuple[str, str], list[bool]]:
        with armed(*([Fault(point="upload.file", action="enospc")] if rank_here() == 1 else [])):
            told = refusal(lambda: report(0, {str(rank_here()): ""}))
        report(1, {str(rank_here()): ""})
        return told, in_step()

    result = fit(tmp_path, train)
    assert result.return_values is not None
    (told_0, _), (told_1, _) = result.return_values
    assert "no space left" in told_0[1]
    assert "no space left" in told_1[1].lower()
    assert told_0[0] == "CheckpointError"
    assert [record.metrics["step"] for record in records(tmp_path)] == [1]
    assert len(StorageLocation.open(tmp_path / "run" / "checkpoints").listing()) == 1


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_ranks_commit_to_an_object_store(s3: S3, bucket: str, mode: CheckpointUploadMode) -> None:
    storage = s3.uri(f"{bucket}/results")

    def train() -> list[bool]:
        for step in range(3):
            report(step, {"model": f"of {rank_here()}", f"of-{rank_here()}": str(step)}, checkpoint_upload_mode=mode)
        return in_step()

    assert fit(storage, train).return_values == [[True]] * 2
    assert [files(storage, record) for record in records(storage)] == [
        {"model": "of 0", "of-0": str(step), "of-1": str(step), "rank_1/model": "of 1"} for step in range(3)
    ]


def test_a_storage_error_of_rank_0_reaches_the_user_as_itself(tmp_path: Path) -> None:
    def train() -> None:
        with armed(*([Fault(point="put.write", action="enospc")] if rank_here() == 0 else [])):
            report(0, {str(rank_here()): ""})

    with pytest.raises(StorageError, match="no space left"):
        fit(tmp_path, train)


def test_a_usage_error_of_all_ranks_reaches_the_user_as_one(tmp_path: Path) -> None:
    def train() -> None:
        report(0, {"a": ""}, checkpoint_dir_name=f"of-{rank_here()}")

    with pytest.raises(UsageError, match="name checkpoint 0 differently"):
        fit(tmp_path, train)
