"""``run.json``: attempts are never counted twice, and a damaged one does not stop the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.storage.helpers import folder_with, save, started
from turnout.errors import StorageError, UsageError
from turnout.storage.location import StorageLocation
from turnout.storage.reading import committed
from turnout.storage.run_folder import ResumePoint, RunFolder, checkpoint_name


def test_attempt_numbers_go_on_over_drivers_and_are_never_used_twice(storage: StorageLocation) -> None:
    run = RunFolder(storage, "run")
    assert not run.exists()
    run.create({"workers": 2})
    assert run.exists()
    assert run.current_attempt() == -1
    assert [run.begin_attempt("first"), run.begin_attempt("rank 1 died")] == [0, 1]
    again = RunFolder(storage, "run")
    again.create({"workers": 3})
    assert again.begin_attempt("a new driver") == 2
    info = again.info()
    assert info is not None
    assert [each.cause for each in info.attempts] == ["first", "rank 1 died", "a new driver"]
    assert info.spec == {"workers": 2}
    assert info.status == "RUNNING"
    again.finish("FINISHED")
    info = run.info()
    assert info is not None
    assert info.status == "FINISHED"


def test_a_damaged_run_file_costs_no_checkpoint_and_no_number(
    local_run: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_with(tmp_path / "given", {"x": b"x"})
    local_run.begin_attempt("again")
    save(local_run, folder, 0, attempt=1)
    place = local_run.location / "run.json"
    data = place.read()
    assert data is not None
    place.put(data[:40])
    assert len(committed(local_run)) == 1
    with pytest.raises(StorageError, match=r"run\.json is gone or damaged"):
        local_run.current_attempt()
    assert local_run.begin_attempt("after the damage") == 2
    assert len(committed(local_run)) == 1
    assert "run.json is cut short or damaged" in caplog.text


def test_the_resume_point_is_kept_with_its_attempt(run: RunFolder) -> None:
    run.begin_attempt("again")
    run.set_resume_point(ResumePoint(name="checkpoint_000003", attempt=0, index=3))
    run.begin_attempt("and again")
    info = run.info()
    assert info is not None
    assert [each.resumed_from and each.resumed_from.index for each in info.attempts] == [None, 3, None]


def test_no_secret_of_the_spec_is_written(tmp_path: Path) -> None:
    run = RunFolder(StorageLocation.open(tmp_path), "run")
    run.create({"path": "s3://key:hidden@bucket/x", "deep": [{"secret_key": "hidden", "lr": 0.1}], "fn": test_names})
    text = (tmp_path / "run" / "run.json").read_text()
    assert "hidden" not in text
    assert json.loads(text)["spec"]["deep"][0]["lr"] == 0.1


def test_names() -> None:
    assert checkpoint_name(7, 0) == "checkpoint_000007"
    assert checkpoint_name(7, 1) == "checkpoint_000007-a1"
    assert checkpoint_name(12_345_678, 12) == "checkpoint_12345678-a12"


@pytest.mark.parametrize("name", ["../x", "/abs", "", "a/b"])
def test_a_run_name_that_would_leave_the_storage_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"RunConfig\.name"):
        RunFolder(StorageLocation.open(tmp_path), name)


def test_a_run_folder_is_found_by_its_place(tmp_path: Path) -> None:
    run = started(StorageLocation.open(tmp_path))
    assert RunFolder.at(StorageLocation.open(tmp_path / "run")) == run
