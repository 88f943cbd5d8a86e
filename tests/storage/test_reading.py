"""Reading a run back: what counts, what is skipped and set aside, and what a crash has left is tidied up."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.storage.helpers import contents, folder_with, save
from turnout.storage.reading import (
    clean_uncommitted,
    committed,
    newest_verified,
    next_index,
    remove_superseded,
    resume_point,
)
from turnout.storage.record import read_record, remove_checkpoint, verify
from turnout.storage.run_folder import ResumePoint, RunFolder

FILES = {"model.pt": b"weights" * 1000, "opt.pt": b"state" * 1000}


@pytest.fixture
def given(tmp_path: Path) -> Path:
    return folder_with(tmp_path / "given", FILES)


def spoil(run: RunFolder, name: str, how: str) -> str:
    """Damage a checkpoint; returns the name of the file that a warning must tell."""
    file = run.checkpoints / name / "model.pt"
    if how == "a flipped bit":
        data = bytearray(FILES["model.pt"])
        data[3000] ^= 1
        file.put(bytes(data))
    elif how == "a truncated file":
        file.put(FILES["model.pt"][:-1])
    elif how == "a missing file":
        file.delete()
    else:
        record = run.checkpoints / name / ".turnout.json"
        record.put((record.read() or b"")[:60])
        return ".turnout.json"
    return "model.pt"


@pytest.mark.parametrize("how", ["a flipped bit", "a truncated file", "a missing file", "a record cut short"])
def test_damage_to_the_newest_is_noticed_named_and_the_one_before_is_taken(
    run: RunFolder, given: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    records = [save(run, given, index) for index in range(3)]
    told = spoil(run, records[2].name, how)
    run.begin_attempt("the driver died")
    clean_uncommitted(run)
    taken = newest_verified(run, "full")
    assert taken == records[1]
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"{records[2].name}/{told}" in warnings[0]
    names = [entry.path for entry in run.checkpoints.listing()]
    assert f"{records[2].name}.bad" in names
    assert records[2].name not in names
    assert committed(run) == records[:2]


def test_by_size_a_flipped_bit_passes_and_a_truncated_file_does_not(run: RunFolder, given: Path) -> None:
    records = [save(run, given, index) for index in range(2)]
    spoil(run, records[1].name, "a flipped bit")
    assert verify(run.checkpoints / records[1].name, "size") is None
    assert "checksum" in str(verify(run.checkpoints / records[1].name, "full"))
    spoil(run, records[0].name, "a truncated file")
    assert "6999 bytes" in str(verify(run.checkpoints / records[0].name, "size"))


def test_metadata_may_change_after_the_commit(run: RunFolder, given: Path) -> None:
    (given / ".metadata.json").write_bytes(b"{}")
    record = save(run, given, 0)
    (run.checkpoints / record.name / ".metadata.json").put(b'{"epoch": 3}')
    assert verify(run.checkpoints / record.name, "full") is None


def test_a_second_bad_folder_of_a_name_gets_a_number(local_run: RunFolder, given: Path) -> None:
    for _ in range(3):
        save(local_run, given, 0, dir_name="best")
        spoil(local_run, "best", "a missing file")
        assert newest_verified(local_run, "size") is None
    assert [entry.path for entry in local_run.checkpoints.listing()] == ["best.bad", "best.bad.1", "best.bad.2"]


def test_a_folder_that_is_gone_costs_the_others_nothing(run: RunFolder, given: Path) -> None:
    records = [save(run, given, index) for index in range(3)]
    (run.checkpoints / records[2].name).delete_tree()
    assert newest_verified(run, "full") == records[1]


def test_what_a_crash_left_is_removed_and_what_was_committed_stays(run: RunFolder, given: Path) -> None:
    record = save(run, given, 0)
    for name in ("checkpoint_000001", "mine", ".staging-3-rank0"):
        (run.checkpoints / name).make_folder()
        (run.checkpoints / name / "model.pt").put(b"half")
    (run.location / ".run.json.abc.partial").put(b"half")
    run.begin_attempt("the driver died")
    assert sorted(clean_uncommitted(run)) == [".staging-3-rank0", "checkpoint_000001", "mine"]
    assert [entry.path for entry in run.checkpoints.listing()] == [record.name]
    assert not (run.location / ".run.json.abc.partial").exists()
    assert clean_uncommitted(run) == []
    assert contents(run.checkpoints / record.name) == FILES


def test_commits_of_an_attempt_that_was_given_up_do_not_count(run: RunFolder, given: Path) -> None:
    first = [save(run, given, index) for index in range(3)]
    run.begin_attempt("replaced")
    run.set_resume_point(resume_point(first[1]))
    assert committed(run) == first[:2]
    assert next_index(committed(run), run.info()) == 2
    second = save(run, given, 2, attempt=1)
    assert second.name == "checkpoint_000002-a1"
    assert committed(run) == [*first[:2], second]
    assert newest_verified(run, "full") == second
    run.begin_attempt("and again")
    run.set_resume_point(resume_point(second))
    assert committed(run) == [*first[:2], second]
    assert remove_superseded(run) == [first[2].name]


def test_a_run_that_begins_anew_keeps_the_old_one_until_its_own_first_commit(run: RunFolder, given: Path) -> None:
    old = [save(run, given, index) for index in range(2)]
    attempt = run.begin_attempt("overwrite")
    assert committed(run) == old
    new = save(run, given, 0, attempt=attempt)
    assert committed(run)[-1] == new
    run.set_resume_point(ResumePoint())
    assert committed(run) == [new]
    assert remove_superseded(run) == [each.name for each in old]
    assert run.folder_names() == [new.name]


def test_a_checkpoint_whose_record_is_gone_is_none(run: RunFolder, given: Path) -> None:
    record = save(run, given, 0)
    remove_checkpoint(run.checkpoints / record.name)
    assert committed(run) == []
    assert read_record(run.checkpoints / record.name) is None
    assert verify(run.checkpoints / record.name, "full") is not None
