"""Drivers as processes of their own: stopped and replaced on disk, killed half-way on S3, on a storage that is slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.storage.conftest import QUICK
from tests.storage.helpers import S3, contents, folder_with, save, started
from turnout import CheckpointConfig
from turnout.storage.commit import FAILPOINTS
from turnout.storage.history import MetricsHistory, history_dataframe
from turnout.storage.lease import Lease
from turnout.storage.location import StorageLocation
from turnout.storage.reading import clean_uncommitted, committed, newest_verified, next_index, resume_point
from turnout.storage.record import verify
from turnout.storage.retention import Retention
from turnout.storage.run_folder import RunFolder
from turnout.testing.faults import Fault, environment

FILES = {"model.pt": b"weights" * 1000, "deep/x": b"x"}

DRIVER = """
import sys
from turnout import Checkpoint
from turnout.storage.commit import CommitRequest, commit
from turnout.storage.location import StorageLocation
from turnout.storage.run_folder import RunFolder
from turnout.testing.faults import arm_from_environment

class Solo:
    rank, world_size = 0, 1
    def gather(self, tag, value):
        return [value]

arm_from_environment()
run = RunFolder(StorageLocation.open(sys.argv[1]), "run")
name = sys.argv[3] if len(sys.argv) > 3 else None
request = CommitRequest(index=1, attempt=0, metrics={}, checkpoint=Checkpoint(sys.argv[2]), dir_name=name)
print(commit(run, Solo(), request).name, flush=True)
"""


def driver(uri: str, folder: Path, fault: Fault, *name: str) -> subprocess.Popen[str]:
    variables = {**os.environ, **environment(fault)}
    command = [sys.executable, "-c", DRIVER, uri, str(folder), *name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


@pytest.mark.parametrize("point", ["upload.file", "commit.after_meeting", "record.before", "put.before_rename"])
def test_a_driver_that_was_stopped_and_replaced_can_commit_no_more_and_says_so(
    local_run: RunFolder, tmp_path: Path, point: str
) -> None:
    folder = folder_with(tmp_path / "given", FILES)
    kept = save(local_run, folder, 0)
    stopped = driver(local_run.location.parent.path, folder, Fault(point=point, action="stop"))
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    attempt = local_run.begin_attempt("the driver did not answer")
    clean_uncommitted(local_run)
    newest = newest_verified(local_run, "full")
    assert newest == kept
    local_run.set_resume_point(resume_point(newest))
    mine = save(local_run, folder, 1, attempt=attempt)
    stopped.send_signal(signal.SIGCONT)
    out, error = stopped.communicate(timeout=50)
    if point in ("record.before", "put.before_rename"):
        # It had looked at the attempt already: whatever became of it, its commit does not count.
        assert out in ("", "checkpoint_000001\n")
    else:
        assert out == ""
        assert "superseded by attempt 1" in error or "StorageError" in error
    assert committed(local_run) == [kept, mine]
    assert all(verify(local_run.checkpoints / each.name, "full") is None for each in committed(local_run))
    assert contents(local_run.checkpoints / mine.name) == FILES


@pytest.mark.parametrize(("point", "hit"), [("upload.file", 1), ("upload.file", 2), ("commit.after_upload", 1)])
@pytest.mark.parametrize("committed_meanwhile", [True, False])
def test_a_stopped_driver_that_goes_on_spoils_no_checkpoint_of_the_same_name(
    local_run: RunFolder, tmp_path: Path, point: str, hit: int, committed_meanwhile: bool
) -> None:
    theirs = folder_with(tmp_path / "theirs", dict.fromkeys(FILES, b"of the old attempt"))
    mine = folder_with(tmp_path / "mine", FILES)
    fault = Fault(point=point, action="stop", on_hit=hit)
    stopped = driver(local_run.location.parent.path, theirs, fault, "best")
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    attempt = local_run.begin_attempt("the driver did not answer")
    clean_uncommitted(local_run)

    def go_on() -> str:
        stopped.send_signal(signal.SIGCONT)
        return stopped.communicate(timeout=50)[1]

    if committed_meanwhile:
        save(local_run, mine, 1, attempt, dir_name="best")
        error = go_on()
    else:
        error = go_on()
        save(local_run, mine, 1, attempt, dir_name="best")
    assert "superseded" in error or "another attempt" in error or "cannot store" in error
    assert [each.attempt for each in committed(local_run)] == [attempt]
    assert verify(local_run.checkpoints / "best", "full") is None
    assert {path: contents(local_run.checkpoints / "best")[path] for path in FILES} == FILES


S3_POINTS = [point for point in FAILPOINTS if point.split(".")[0] != "put" and point != "commit.after_release"]


@pytest.mark.parametrize("point", S3_POINTS[1::3])
def test_a_driver_killed_half_way_on_s3_leaves_only_whole_checkpoints(
    s3: S3, bucket: str, tmp_path: Path, point: str
) -> None:
    uri = s3.uri(f"{bucket}/results")
    run = started(StorageLocation.open(uri, retry=QUICK))
    folder = folder_with(tmp_path / "given", FILES)
    kept = save(run, folder, 0)
    killed = driver(uri, folder, Fault(point=point, action="kill"))
    killed.communicate(timeout=50)
    assert killed.returncode == -signal.SIGKILL
    run.begin_attempt("the driver died")
    clean_uncommitted(run)
    offered = committed(run)
    assert offered[0] == kept
    assert all(contents(run.checkpoints / each.name) == FILES for each in offered)
    assert run.folder_names() == [each.name for each in offered]


def test_a_run_on_s3_from_its_lease_to_its_history_while_the_storage_is_slow_and_fails(
    s3: S3, bucket: str, tmp_path: Path
) -> None:
    storage = StorageLocation.open(s3.uri(f"{bucket}/results"), retry=QUICK)
    storage.check_writable()
    folder = folder_with(tmp_path / "given", FILES)
    for driver_number in range(2):
        run = RunFolder(storage, "run")
        lease = Lease(run)
        lease.acquire()
        run.create({"driver": driver_number})
        attempt = run.begin_attempt("started")
        clean_uncommitted(run)
        newest = newest_verified(run, "full")
        assert (newest and newest.index) == (2 if driver_number else None)
        run.set_resume_point(resume_point(newest))
        retention = Retention(run, CheckpointConfig(num_to_keep=2), committed(run))
        history = MetricsHistory(run)
        first = next_index(retention.records, run.info())
        s3.mood(fail=3, delay_s=0.02)
        for index in range(first, first + 3):
            record = save(run, folder, index, attempt, metrics={"loss": 1.0 / (index + 1)})
            history.append(index, 0, attempt, record.metrics, record.name)
            history.flush()
            retention.remember(record)
            retention.apply()
        s3.mood()
        history.seal()
        run.finish("FINISHED")
        lease.release()
    assert [each.index for each in committed(run)] == [4, 5]
    assert list(history_dataframe(run).index) == list(range(6))
    info = run.info()
    assert info is not None
    assert info.status == "FINISHED"
    assert not (run.location / "lease.json").exists()


def test_a_storage_that_takes_seconds_for_each_answer_slows_the_run_and_says_why(
    s3: S3, bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = started(StorageLocation.open(s3.uri(f"{bucket}/results")))
    s3.mood(delay_s=5.2, method="PUT")
    begin = time.monotonic()
    record = save(run, folder_with(tmp_path / "given", {"x": b"x"}), 0)
    assert time.monotonic() - begin > 10
    s3.mood()
    assert "the storage is slow" in caplog.text
    assert verify(run.checkpoints / record.name, "full") is None
