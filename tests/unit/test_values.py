"""Handles and results: equal by what they stand for, picklable, and readable as their constructors."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from turnout import (
    Checkpoint,
    CheckpointNotFoundError,
    ReportedCheckpoint,
    ReportedCheckpointStatus,
    Result,
    RunConfig,
    UsageError,
    ValidationConfig,
)


def test_a_checkpoint_is_equal_to_another_of_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings: list[str | Path] = ["c", "./c/", f"{tmp_path}/c", tmp_path / "c", f"file://{tmp_path}/c", "~/c"]
    assert len({Checkpoint(each) for each in spellings}) == 1
    assert Checkpoint("c") != Checkpoint("d")
    assert Checkpoint("c") != "c"


def test_a_checkpoint_pickles_and_reads_as_its_constructor(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert pickle.loads(pickle.dumps(checkpoint)) == checkpoint
    assert eval(repr(checkpoint)) == checkpoint


@pytest.mark.parametrize("path", ["", "  ", 3, None, b"bytes"])
def test_what_is_no_path_is_no_checkpoint(path: object) -> None:
    with pytest.raises(UsageError, match=r"Checkpoint\.path"):
        Checkpoint(path)  # type: ignore[arg-type]


def test_a_checkpoint_is_no_path_and_says_what_to_call(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"as_directory\(\).*to_directory\(\)"):
        os.fspath(Checkpoint(tmp_path))


def test_a_checkpoint_whose_folder_is_gone_says_so_when_it_is_used(tmp_path: Path) -> None:
    missing = Checkpoint(tmp_path / "missing")
    with pytest.raises(CheckpointNotFoundError, match="missing does not exist"):
        missing.to_directory()
    with pytest.raises(FileNotFoundError), missing.as_directory():
        pass
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointNotFoundError, match="put the file into one"):
        Checkpoint(tmp_path / "file").get_metadata()


def test_a_checkpoint_is_copied_where_it_is_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "model").write_text("m")
    target = Checkpoint(source).to_directory(tmp_path / "target")
    assert Path(target, "sub", "model").read_text() == "m"
    with Checkpoint(source).as_directory() as folder:
        assert folder == str(source)


def test_metadata_is_stored_beside_the_files(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"epoch": 1, "tag": "a"})
    checkpoint.update_metadata({"epoch": 2})
    assert Checkpoint(tmp_path).get_metadata() == {"epoch": 2, "tag": "a"}
    with pytest.raises(UsageError, match="JSON cannot hold it"):
        checkpoint.set_metadata({"x": object()})
    assert Checkpoint(tmp_path).get_metadata() == {"epoch": 2, "tag": "a"}


def test_a_result_pickles_and_reads_as_its_constructor(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    result = Result({"loss": 1.0}, checkpoint, best_checkpoints=[(checkpoint, {"loss": 1.0})], return_values=[1, 2])
    assert vars(pickle.loads(pickle.dumps(result))) == vars(result)
    assert vars(eval(repr(result))) == vars(result)
    assert repr(Result()) == "Result()"


def test_a_reported_checkpoint_pickles(tmp_path: Path) -> None:
    reported = ReportedCheckpoint(Checkpoint(tmp_path), {"loss": 1.0}, ReportedCheckpointStatus.VALIDATED)
    assert pickle.loads(pickle.dumps(reported)) == reported


def test_a_validation_config_reads_as_its_constructor() -> None:
    assert repr(ValidationConfig(fn=dict)) == "ValidationConfig(fn=<class 'dict'>)"


@pytest.mark.parametrize("filesystem", [5, "s3", dict])
def test_what_is_no_filesystem_is_refused(filesystem: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Checkpoint\.filesystem=.*fsspec filesystem"):
        Checkpoint(tmp_path, filesystem)
    with pytest.raises(UsageError, match=r"RunConfig\.storage_filesystem=.*fsspec filesystem"):
        RunConfig(storage_path="runs", storage_filesystem=filesystem)


def test_a_uri_on_a_filesystem_of_ones_own_is_refused() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    with pytest.raises(UsageError, match="and no URI"):
        RunConfig(storage_path="memory://runs", storage_filesystem=memory)
    with pytest.raises(UsageError, match="and no URI"):
        Checkpoint("memory://runs", memory)


def test_a_file_uri_with_a_host_is_refused() -> None:
    with pytest.raises(UsageError, match="the host 'tmp'"):
        RunConfig(storage_path="file://tmp/runs")


@pytest.mark.parametrize("path", ["", None, 3, "/"])
def test_what_is_no_runs_folder_is_refused(path: object) -> None:
    with pytest.raises(UsageError, match=r"Result\.from_path\(\): path"):
        Result.from_path(path)  # type: ignore[arg-type]


def test_a_checkpoint_is_not_copied_onto_itself_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path, tmp_path / "file", ""):
        with pytest.raises(UsageError, match=r"to_directory\(\): path"):
            Checkpoint(tmp_path).to_directory(target)
