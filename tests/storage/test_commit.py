"""The commit of one rank and of many: what is stored, what is refused, and that a failure leaves nothing half done."""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.storage.helpers import Meeting, Ranks, Solo, contents, folder_with, save, started
from turnout import Checkpoint
from turnout.checkpoint import ReportedCheckpointStatus
from turnout.errors import CheckpointError, StorageError, UsageError
from turnout.storage.commit import FAILPOINTS, CommitRequest, commit, stage
from turnout.storage.location import StorageLocation
from turnout.storage.reading import committed
from turnout.storage.record import CommitRecord, checkpoint_of, read_record, update_record, verify
from turnout.storage.run_folder import RunFolder
from turnout.testing.faults import Fault, armed

FILES = {"model.pt": b"weights" * 1000, "a b/ü.bin": b"unicode", "empty": b"", "deep/er/x": b"x"}


def commit_by(run: RunFolder, folders: list[Path | None], ranks: Ranks | None = None, **request: Any) -> list[Any]:
    request = {"index": 0, "attempt": 0, "metrics": {"loss": 0.5}, **request}
    names = request.pop("names", [None] * len(folders))

    def one(meeting: Meeting) -> CommitRecord | None:
        folder = folders[meeting.rank]
        checkpoint = Checkpoint(folder) if folder else None
        return commit(run, meeting, CommitRequest(checkpoint=checkpoint, dir_name=names[meeting.rank], **request))

    return (ranks or Ranks(len(folders))).run(one)


def test_a_checkpoint_is_stored_recorded_and_read_back_on_every_storage(run: RunFolder, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "given", FILES)
    metrics = {"loss": math.nan, "best": math.inf, "eval": {"acc": 0.25}, "worst": -math.inf, "name": "ü"}
    record = save(run, folder, 0, metrics=metrics)
    place = run.checkpoints / "checkpoint_000000"
    assert contents(place) == FILES
    assert committed(run) == [read_record(place)]
    again = read_record(place)
    assert again is not None
    assert repr(again) == repr(record)
    assert math.isnan(again.metrics["loss"])
    assert {e.path: (e.size, e.rank) for e in again.files} == {path: (len(data), 0) for path, data in FILES.items()}
    assert all(entry.checksum for entry in again.files)
    assert (again.run, again.index, again.attempt, again.world_size) == ("run", 0, 0, 1)
    assert verify(place, "full") is None
    assert verify(place, "size") is None
    with checkpoint_of(place).as_directory() as local:
        assert (Path(local) / "model.pt").read_bytes() == FILES["model.pt"]


def test_the_checksum_is_xxh3_64_of_the_file(local_run: RunFolder, tmp_path: Path) -> None:
    import xxhash

    files = {"small": b"a" * 1000, "large": os.urandom(20 << 20), "one": os.urandom(8 << 20)}
    record = save(local_run, folder_with(tmp_path / "given", files), 0)
    assert {entry.path: entry.checksum for entry in record.files} == {
        path: xxhash.xxh3_64(data).hexdigest() for path, data in files.items()
    }
    assert contents(local_run.checkpoints / record.name) == files


def test_an_attempt_after_the_first_shows_in_the_folders_name(local_run: RunFolder, tmp_path: Path) -> None:
    assert local_run.begin_attempt("retry") == 1
    assert save(local_run, folder_with(tmp_path / "given", FILES), 7, attempt=1).name == "checkpoint_000007-a1"


def test_ranks_with_different_files_no_files_and_no_checkpoint_make_one_checkpoint(
    run: RunFolder, tmp_path: Path
) -> None:
    folders = [
        folder_with(tmp_path / "0", {"rank0": b"0"}),
        None,
        folder_with(tmp_path / "2", {}),
        folder_with(tmp_path / "3", {"rank3": b"3", "deep/rank3": b"33"}),
    ]
    records = commit_by(run, folders)
    assert len({repr(record) for record in records}) == 1
    assert contents(run.checkpoints / "checkpoint_000000") == {"rank0": b"0", "rank3": b"3", "deep/rank3": b"33"}
    assert {entry.path: entry.rank for entry in records[0].files} == {"rank0": 0, "rank3": 3, "deep/rank3": 3}


def test_only_the_last_rank_passes_a_checkpoint(local_run: RunFolder, tmp_path: Path) -> None:
    records = commit_by(local_run, [None, None, folder_with(tmp_path / "2", {"x": b"x"})])
    assert records[0].files[0].rank == 2


def test_no_rank_passes_a_checkpoint_and_nothing_is_committed(local_run: RunFolder) -> None:
    assert commit_by(local_run, [None, None]) == [None, None]
    assert committed(local_run) == []


def test_the_same_file_of_every_rank_is_stored_once(
    local_run: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders: list[Path | None] = [folder_with(tmp_path / str(rank), FILES) for rank in range(3)]
    records = commit_by(local_run, folders)
    assert contents(local_run.checkpoints / records[0].name) == FILES
    assert {entry.rank for entry in records[0].files} == {0}
    assert not caplog.records


def test_files_that_differ_under_one_path_are_kept_side_by_side_with_one_warning(
    run: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    same_size = [folder_with(tmp_path / str(rank), {"model.pt": b"%d" % rank, "a/b": b"x" * rank}) for rank in range(3)]
    records = commit_by(run, [*same_size])
    assert contents(run.checkpoints / records[0].name) == {
        "model.pt": b"0",
        "a/b": b"",
        "rank_1/model.pt": b"1",
        "rank_1/a/b": b"x",
        "rank_2/model.pt": b"2",
        "rank_2/a/b": b"xx",
    }
    assert verify(run.checkpoints / records[0].name, "full") is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_file_of_one_rank_where_another_has_a_folder_is_kept(local_run: RunFolder, tmp_path: Path) -> None:
    folders: list[Path | None] = [
        folder_with(tmp_path / "0", {"a": b"file", "b/c": b"below"}),
        folder_with(tmp_path / "1", {"a/x": b"below", "b": b"file", "rank_1/b": b"in the way"}),
    ]
    records = commit_by(local_run, folders)
    found = contents(local_run.checkpoints / records[0].name)
    assert sorted(found.values()) == sorted([b"file", b"below", b"below", b"file", b"in the way"])
    assert found["a"] == b"file"
    assert found["rank_1/b"] == b"in the way"


def test_a_symlinked_folder_with_links_and_an_empty_folder_is_stored(local_run: RunFolder, tmp_path: Path) -> None:
    real = folder_with(tmp_path / "real", {"file": b"data"})
    folder_with(tmp_path / "elsewhere", {"inner": b"linked"})
    (real / "link").symlink_to(real / "file")
    (real / "linked folder").symlink_to(tmp_path / "elsewhere")
    (real / "nothing" / "in here").mkdir(parents=True)
    (tmp_path / "given").symlink_to(real)
    record = save(local_run, tmp_path / "given", 0)
    place = local_run.checkpoints / record.name
    assert contents(place) == {"file": b"data", "link": b"data", "linked folder/inner": b"linked"}
    assert (Path(place.path) / "nothing" / "in here").is_dir()
    assert not (Path(place.path) / "link").is_symlink()
    assert verify(place, "full") is None


def test_a_link_to_a_folder_around_it_is_refused(local_run: RunFolder, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "given", {"inner/file": b"data"})
    (folder / "inner" / "loop").symlink_to(folder)
    with pytest.raises(CheckpointError, match=r"inner/loop: a symbolic link to a folder that it lies in"):
        save(local_run, folder, 0)


@pytest.mark.parametrize("kind", ["socket", "pipe", "broken link"])
def test_what_cannot_be_stored_is_refused_with_its_path(
    local_run: RunFolder, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_with(tmp_path / "given", {"file": b"data"})
    monkeypatch.chdir(folder)
    if kind == "pipe":
        os.mkfifo("odd")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("odd")
    else:
        os.symlink("nowhere", "odd")
    with pytest.raises(CheckpointError, match=f"{folder}/odd"):
        save(local_run, folder, 0)
    assert local_run.folder_names() == []


def test_ten_thousand_small_files_are_one_checkpoint(local_run: RunFolder, tmp_path: Path) -> None:
    files = {f"{number % 100}/{number}": b"%d" % number for number in range(10_000)}
    record = save(local_run, folder_with(tmp_path / "given", files), 0)
    assert len(record.files) == 10_000
    assert contents(local_run.checkpoints / record.name) == files


@pytest.mark.parametrize("how", ["grows", "is rewritten", "is replaced", "goes"])
@pytest.mark.parametrize("move", [False, True])
def test_a_source_that_changes_while_it_is_stored_is_noticed(
    local_run: RunFolder, tmp_path: Path, how: str, move: bool
) -> None:
    if move and how in ("is replaced", "goes"):
        pytest.skip("the file that was scanned has been taken, whatever its old name means now")
    folder = folder_with(tmp_path / "given", {"model.pt": b"x" * 1000})
    file = folder / "model.pt"

    class Spoiler(Solo):
        def gather(self, tag: str, value: Any) -> list[Any]:
            if tag.endswith("offer"):
                if how == "grows":
                    file.write_bytes(b"x" * 1001)
                elif how == "is rewritten":
                    file.write_bytes(b"y" * 1000)
                elif how == "is replaced":
                    (folder / "new").write_bytes(b"z" * 1000)
                    os.replace(folder / "new", file)
                else:
                    file.unlink()
            return [value]

    request = CommitRequest(index=0, attempt=0, metrics={}, checkpoint=Checkpoint(folder), move=move)
    with pytest.raises((CheckpointError, StorageError), match=r"model\.pt"):
        commit(local_run, Spoiler(), request)
    assert local_run.folder_names() == []


def test_a_move_takes_the_files_by_link_and_removes_the_source(local_run: RunFolder, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "given", FILES)
    inode = (folder / "model.pt").stat().st_ino
    record = save(local_run, folder, 0, move=True)
    place = local_run.checkpoints / record.name
    assert contents(place) == FILES
    assert verify(place, "full") is None
    assert os.stat(f"{place.path}/model.pt").st_ino == inode
    assert not folder.exists()


@pytest.mark.parametrize("staged", [False, True])
def test_a_move_copies_what_others_may_still_write_to(local_run: RunFolder, tmp_path: Path, staged: bool) -> None:
    shared = folder_with(tmp_path / "shared", {"base.pt": b"base", "named twice": b"two"})
    folder = folder_with(tmp_path / "given", {"mine.pt": b"mine"})
    (folder / "base.pt").symlink_to(shared / "base.pt")
    (folder / "linked").symlink_to(shared)
    os.link(shared / "named twice", folder / "named twice")
    source = Path(stage(local_run, Checkpoint(folder), name="0", rank=0, move=True).path) if staged else folder
    record = save(local_run, source, 0, move=True, staged=staged)
    for path in ("base.pt", "named twice"):
        with open(shared / path, "r+b") as file:
            file.write(b"xx")
    place = local_run.checkpoints / record.name
    assert verify(place, "full") is None
    assert contents(place)["linked/base.pt"] == b"base"
    assert (shared / "base.pt").exists()


@pytest.mark.parametrize("move", [False, True])
def test_staged_files_are_committed_later_though_the_source_is_gone(run: RunFolder, tmp_path: Path, move: bool) -> None:
    folder = folder_with(tmp_path / "given", FILES)
    staged = stage(run, Checkpoint(folder), name="3", rank=0, move=move)
    for path in FILES:
        (folder / path).unlink()
    record = save(run, Path(staged.path), 3, staged=True, move=True)
    assert contents(run.checkpoints / record.name) == FILES
    assert not Path(staged.path).exists()
    assert committed(run) == [record]


def test_files_in_place_are_recorded_by_size(run: RunFolder) -> None:
    place = run.checkpoint_path("mine")
    (place / "deep").make_folder()
    for path, data in FILES.items():
        (place / path).parent.make_folder()
        (place / path).put(data)
    checkpoint = checkpoint_of(place)
    request = CommitRequest(index=0, attempt=0, metrics={}, checkpoint=checkpoint, in_place=True)
    record = commit(run, Solo(), request)
    assert record is not None
    assert record.name == "mine"
    assert {e.path: (e.size, e.checksum) for e in record.files} == {p: (len(d), None) for p, d in FILES.items()}
    assert contents(place) == FILES
    with pytest.raises(UsageError, match="already"):
        commit(run, Solo(), request)
    assert contents(place) == FILES


def test_an_upload_function_stores_in_turnouts_place(local_run: RunFolder, tmp_path: Path) -> None:
    def store(checkpoint: Checkpoint, name: str) -> Checkpoint:
        return Checkpoint(checkpoint.to_directory(local_run.checkpoint_path(name).path))

    record = save(local_run, folder_with(tmp_path / "given", FILES), 0, upload_fn=store)
    assert contents(local_run.checkpoints / record.name) == FILES
    assert {entry.checksum for entry in record.files} == {None}
    with pytest.raises(UsageError, match="checkpoint_upload_fn returned"):
        save(local_run, folder_with(tmp_path / "given", FILES), 1, upload_fn=lambda checkpoint, name: checkpoint)


def test_a_name_that_was_given_before_is_refused_and_the_first_is_untouched(run: RunFolder, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "given", FILES)
    save(run, folder, 0, dir_name="best")
    (folder / "model.pt").write_bytes(b"other")
    with pytest.raises(UsageError, match="'best' already, of attempt 0"):
        save(run, folder, 1, dir_name="best")
    assert contents(run.checkpoints / "best") == FILES
    assert verify(run.checkpoints / "best", "full") is None


@pytest.mark.parametrize("name", ["a/b", "/abs", "", "..", ".hidden", "x.bad", "x.bad.3"])
def test_a_name_that_would_leave_the_folder_is_refused(local_run: RunFolder, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="checkpoint_dir_name"):
        save(local_run, folder_with(tmp_path / "given", FILES), 0, dir_name=name)
    assert local_run.folder_names() == []


def test_ranks_that_give_different_names_are_told_so(local_run: RunFolder, tmp_path: Path) -> None:
    folders: list[Path | None] = [folder_with(tmp_path / str(rank), FILES) for rank in range(2)]
    errors = commit_by(local_run, folders, names=["a", "b"])
    assert all(isinstance(error, UsageError) and "rank 1: 'b'" in str(error) for error in errors)
    assert [record.name for record in commit_by(local_run, folders, names=["a", None])] == ["a", "a"]
    assert local_run.folder_names() == ["a"]


@pytest.mark.parametrize("where", ["run", "checkpoints", "below", "storage"])
def test_a_folder_inside_or_around_the_runs_own_is_refused(local_run: RunFolder, where: str) -> None:
    below = folder_with(Path(local_run.checkpoints.path) / "mine", {"x": b"x"})
    places = {
        "run": local_run.location.path,
        "checkpoints": local_run.checkpoints.path,
        "below": str(below),
        "storage": local_run.location.parent.path,
    }
    with pytest.raises(UsageError, match="run's own folder"):
        save(local_run, Path(places[where]), 0)
    assert below.exists()


@pytest.mark.parametrize("where", ["run", "elsewhere", "too deep"])
def test_files_in_place_must_be_in_a_checkpoints_folder(local_run: RunFolder, tmp_path: Path, where: str) -> None:
    places = {
        "run": Path(local_run.location.path),
        "elsewhere": folder_with(tmp_path / "given", FILES),
        "too deep": folder_with(Path(local_run.checkpoints.path) / "a" / "b", FILES),
    }
    with pytest.raises(UsageError, match="NO_UPLOAD"):
        save(local_run, places[where], 0, in_place=True)


def test_one_ranks_failure_is_raised_by_all_and_they_stay_in_step(local_run: RunFolder, tmp_path: Path) -> None:
    ranks = Ranks(3)
    folders: list[Path | None] = [folder_with(tmp_path / str(rank), {f"{rank}": b"x"}) for rank in range(3)]
    with armed(Fault(point="upload.file", action="enospc", rank=1)):
        errors = commit_by(local_run, folders, ranks)
    assert isinstance(errors[1], StorageError)
    assert "1 bytes are needed" in str(errors[1])
    assert all(
        isinstance(errors[rank], CheckpointError) and "rank 1: StorageError" in str(errors[rank]) for rank in (0, 2)
    )
    assert local_run.folder_names() == []
    assert len({record.name for record in commit_by(local_run, folders, ranks)}) == 1


def test_a_half_written_folder_of_the_same_name_leaves_no_file_in_the_new_one(run: RunFolder, tmp_path: Path) -> None:
    (run.checkpoints / "best").make_folder()
    (run.checkpoints / "best" / "old").put(b"left by a crash")
    save(run, folder_with(tmp_path / "given", FILES), 0, dir_name="best")
    assert contents(run.checkpoints / "best") == FILES


def test_a_superseded_attempt_can_commit_nothing_and_is_told_why(run: RunFolder, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "given", FILES)
    before = save(run, folder, 0)

    class Sleeper(Solo):
        def gather(self, tag: str, value: Any) -> list[Any]:
            if tag.endswith("stored"):
                run.begin_attempt("the driver was replaced")
            return [value]

    request = CommitRequest(index=1, attempt=0, metrics={}, checkpoint=Checkpoint(folder))
    with pytest.raises(CheckpointError, match="attempt 0 has been superseded by attempt 1"):
        commit(run, Sleeper(), request)
    assert committed(run) == [before]
    with pytest.raises(CheckpointError, match="superseded"):
        save(run, folder, 2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting a small disk takes rights that this user has not")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_says_path_need_and_what_there_is_and_goes_on_after(small_disk: Path, tmp_path: Path) -> None:
    run = started(StorageLocation.open(small_disk))
    kept = save(run, folder_with(tmp_path / "small", {"a": b"a" * (1 << 20)}), 0)
    folder = folder_with(tmp_path / "given", {"a": b"a" * (4 << 20), "large.pt": b"b" * (9 << 20)})
    with pytest.raises(
        StorageError, match=r"large\.pt: no space left .*13631488 bytes are needed, \d+ bytes are avail"
    ):
        save(run, folder, 1)
    assert run.folder_names() == [kept.name]
    assert verify(run.checkpoints / kept.name, "full") is None
    (folder / "large.pt").unlink()
    assert save(run, folder, 1).index == 1


@pytest.mark.parametrize("point", [point for point in FAILPOINTS if point != "commit.after_release"])
def test_a_failure_at_any_step_offers_all_or_nothing(local_run: RunFolder, tmp_path: Path, point: str) -> None:
    folder = folder_with(tmp_path / "given", FILES)
    kept = save(local_run, folder, 0)
    with armed(Fault(point=point, action="raise", times=0)), pytest.raises((OSError, StorageError)):
        save(local_run, folder, 1)
    for record in committed(local_run):
        assert verify(local_run.checkpoints / record.name, "full") is None
        assert contents(local_run.checkpoints / record.name) == FILES
    assert committed(local_run)[0] == kept


def test_a_commit_passes_every_failpoint_in_order(local_run: RunFolder, tmp_path: Path) -> None:
    with armed() as counted:
        save(local_run, folder_with(tmp_path / "given", {"x": b"x"}), 0)
    passed = [name for name, _ in counted.hits if name in FAILPOINTS]
    assert [point for point in FAILPOINTS if point in passed] == list(FAILPOINTS)
    assert passed == sorted(passed, key=FAILPOINTS.index)


def test_a_record_that_was_cut_short_anywhere_is_none(local_run: RunFolder, tmp_path: Path) -> None:
    record = save(local_run, folder_with(tmp_path / "given", {"x": b"x"}), 0, metrics={"loss": 0.25})
    place = local_run.checkpoints / record.name / ".turnout.json"
    data = place.read()
    assert data is not None
    for length in range(len(data) - 1):
        place.put(data[:length])
        assert read_record(local_run.checkpoints / record.name) is None
    place.put(data.replace(b"0.25", b"0.26"))
    assert read_record(local_run.checkpoints / record.name) is None


def test_the_outcome_of_a_validation_is_merged_into_the_record(run: RunFolder, tmp_path: Path) -> None:
    pending = ReportedCheckpointStatus.PENDING_VALIDATION
    record = save(run, folder_with(tmp_path / "given", FILES), 0, metrics={"loss": 1.0}, status=pending)
    place = run.checkpoints / record.name
    update_record(place, metrics={"acc": math.nan, "loss": 2.0}, status=ReportedCheckpointStatus.VALIDATED)
    again = read_record(place)
    assert again is not None
    assert again.status is ReportedCheckpointStatus.VALIDATED
    assert again.metrics["loss"] == 2.0
    assert math.isnan(again.metrics["acc"])
    assert verify(place, "full") is None
    assert update_record(run.checkpoints / "none", metrics={}) is None


def test_an_s3_that_fails_now_and_then_still_gets_every_file(run: RunFolder, tmp_path: Path, s3_server: Any) -> None:
    if run.location.kind != "s3":
        pytest.skip("only a remote storage fails for a moment")
    s3_server.mood(fail=6, method="PUT")
    record = save(run, folder_with(tmp_path / "given", FILES), 0)
    assert s3_server.mood()["failed"] >= 6
    assert contents(run.checkpoints / record.name) == FILES
    assert verify(run.checkpoints / record.name, "full") is None
