"""The same protocol on an object store: an S3 server on loopback that is killed under, fails, is slow and refuses."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.crash.lane import Lane, Tally, read_notes
from tests.crash.train_program import write_folder
from tests.storage.helpers import S3
from turnout import Checkpoint, Result, RunConfig, ScalingConfig, StorageError
from turnout.storage.location import StorageLocation
from turnout.storage.reading import committed
from turnout.testing.faults import Fault

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"


def lane_on(tmp_path: Path, tally: Tally, storage_path: str, **plan: Any) -> Lane:
    return Lane(tmp_path, tally, storage_path=storage_path, **plan)


def strike(lane: Lane, point: str, on_hit: int) -> None:
    status = lane.live(Fault(point=point, action="kill", on_hit=on_hit), num_steps=4)
    assert status == -signal.SIGKILL, f"{point} was not passed {on_hit} times: {lane.output}"
    lane.count("at failpoints on S3")
    lane.audit()


def goes_on(lane: Lane) -> None:
    newest = lane.audit().newest
    assert lane.live(num_steps=2) == 0, lane.output
    assert lane.audit().newest == newest + 2


@pytest.mark.parametrize(
    "points",
    [
        {"run.after_attempt": 1, "commit.after_scan": 2, "upload.file": 5, "upload.chunk": 5, "upload.data": 2},
        {"commit.after_upload": 1, "put.before": 6, "put.write": 6, "record.write": 2, "put.after": 5},
        {"record.after": 1, "commit.after_record": 2, "commit.before_record": 2, "commit.after_release": 1},
        {"remove.after_record": 1, "history.before_write": 1, "history.before_seal": 1, "history.after_seal": 1},
    ],
    ids=["upload", "record", "release", "after"],
)
def test_a_run_on_s3_that_is_killed_at_a_point_loses_nothing_and_goes_on(
    tmp_path: Path, tally: Tally, s3: S3, bucket: str, points: dict[str, int]
) -> None:
    keeps = 2 if "remove.after_record" in points else None
    lane = lane_on(tmp_path, tally, s3.uri(f"{bucket}/runs"), num_to_keep=keeps)
    for point, on_hit in points.items():
        strike(lane, point, on_hit)
    goes_on(lane)


@pytest.mark.parametrize("mode", ["SYNC", "MIXED"])
def test_a_run_on_s3_that_is_killed_at_random_moments_loses_nothing(
    tmp_path: Path, tally: Tally, s3: S3, bucket: str, mode: str
) -> None:
    moments = random.Random(mode)
    lane = lane_on(tmp_path, tally, s3.uri(f"{bucket}/runs"), mode=mode, num_to_keep=3)
    for _ in range(8):
        with lane.start() as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(moments.uniform(0.0, 0.2))  # the random moment itself: nothing is waited for
            lane.kill(process, "at random moments on S3")
        lane.audit()
    goes_on(lane)


@pytest.mark.parametrize("mood", [{"every": 11}, {"delay_s": 0.03}, {"every": 3, "method": "PUT"}], ids=str)
def test_a_run_goes_through_while_s3_fails_now_and_then_and_is_slow(
    tmp_path: Path, tally: Tally, s3: S3, bucket: str, mood: dict[str, Any]
) -> None:
    lane = lane_on(tmp_path, tally, s3.uri(f"{bucket}/runs"), mode="MIXED", num_to_keep=2)
    before = s3.mood(**mood)
    for num_steps in (2, 1):
        assert lane.live(num_steps=num_steps) == 0, lane.output
    after = s3.mood()
    assert ("every" not in mood) or after["failed"] > before["failed"] + 5
    assert lane.audit().steps == [1, 2]


def test_a_run_on_s3_commits_resumes_retains_and_is_read_back_by_a_filesystem_of_the_users(
    tmp_path: Path, s3: S3, bucket: str
) -> None:
    import pyarrow.fs

    filesystem = pyarrow.fs.S3FileSystem(endpoint_override=s3.endpoint, scheme="http", region="us-east-1")

    def train() -> int:
        checkpoint = turnout.get_checkpoint()
        start = 0
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                start = int(Path(folder, "step").read_text()) + 1
        for step in range(start, start + 3):
            source = tmp_path / f"source-{step}"
            write_folder(str(source), {"step": str(step).encode(), "model/weights": bytes(100_000)})
            turnout.report({"step": step}, Checkpoint(source))
        return start

    trainer = turnout.DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(
            name="run",
            storage_path=f"{bucket}/runs",
            storage_filesystem=filesystem,
            checkpoint_config=turnout.CheckpointConfig(num_to_keep=2),
        ),
    )
    assert trainer.fit().return_value == 0
    result = trainer.fit()
    assert result.return_value == 3
    again = Result.from_path(f"{bucket}/runs/run", filesystem)
    assert [metrics for _, metrics in again.best_checkpoints or ()] == [{"step": 4}, {"step": 5}]
    assert again.best_checkpoints == result.best_checkpoints
    assert list(again.metrics_dataframe["step"]) == list(range(6))
    assert again.checkpoint is not None
    with again.checkpoint.as_directory() as folder:
        assert Path(folder, "step").read_text() == "5"


@pytest.mark.parametrize("damage", ["truncated", "missing", "record cut short"])
def test_damage_on_s3_is_named_and_the_checkpoint_before_is_taken(
    tmp_path: Path, tally: Tally, s3: S3, bucket: str, damage: str
) -> None:
    lane = lane_on(tmp_path, tally, s3.uri(f"{bucket}/runs"))
    assert lane.live(num_steps=3, is_killed=True) < 0, lane.output
    assert lane.audit().newest == 2
    folder = lane.run.checkpoints / committed(lane.run)[-1].name
    file = folder / (".turnout.json" if damage.startswith("record") else "model.bin")
    if damage == "missing":
        file.delete()
    else:
        file.put((file.read() or b"")[:100])
    lane.expects(1)
    goes_on_from = lane.live(num_steps=2, is_killed=True)
    assert goes_on_from < 0, lane.output
    assert str(file) in lane.output
    assert lane.audit().newest == 3


@pytest.mark.parametrize("point", ["commit.before_record", "record.before", "record.after"])
def test_a_driver_on_s3_that_is_stopped_replaced_and_continued_commits_nothing_and_says_why(
    tmp_path: Path, tally: Tally, s3: S3, bucket: str, point: str
) -> None:
    lane = lane_on(tmp_path, tally, s3.uri(f"{bucket}/runs"))
    own = str(tmp_path / "first-notes")
    stop = Fault(point=point, action="stop", on_hit=2)
    with lane.start(stop, notes=own, lease_s=1.0) as first:
        state = os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert state is not None
        assert state.si_code == os.CLD_STOPPED, lane.output
        assert lane.live(num_steps=2) == 0, lane.output
        entered_from = lane.told().entered[-1]
        first.send_signal(signal.SIGCONT)
        assert first.wait(30) == 1
    told = read_notes(own)
    assert told.returned == 0 <= entered_from
    assert re.search(r"has been superseded by attempt 1|the lease was lost", told.errors[-1]), told.errors
    with open(lane.plan.notes, "a", encoding="utf-8") as file:
        file.write("begun 0\nbegun 1\nreturned 0\n")
    assert lane.audit().newest == entered_from + 2


def fit_at(storage_path: str) -> StorageError:
    trainer = turnout.DataParallelTrainer(
        lambda: turnout.report({}),
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=storage_path),
    )
    begin = time.monotonic()
    with pytest.raises(StorageError) as caught:
        trainer.fit()
    assert time.monotonic() - begin < 15
    return caught.value


def test_a_missing_bucket_is_told_within_seconds_by_its_name(s3: S3) -> None:
    error = fit_at(s3.uri("no-such-bucket/runs"))
    assert re.search(r"no-such-bucket/runs.*(bucket does not exist|NoSuchBucket|NO_SUCH_BUCKET)", str(error)), error


def test_a_wrong_key_is_told_within_seconds_with_the_buckets_name(s3: S3, bucket: str) -> None:
    s3.mood(deny=True)
    error = fit_at(s3.uri(f"{bucket}/runs", f"{KEY}:{SECRET}@"))
    assert bucket in str(error)
    assert re.search(r"(?i)key|access|denied|403", str(error)), error
    assert KEY not in str(error)
    assert SECRET not in str(error)


def test_a_password_with_a_plain_slash_is_refused_and_not_shown(s3: S3, bucket: str) -> None:
    error = fit_at(s3.uri(f"{bucket}/runs", f"{KEY}:wJalrXUt/nFEMI/K7MDENG@"))
    for part in (KEY, "wJalrXUt", "nFEMI", "K7MDENG"):
        assert part not in str(error)


def test_a_server_that_is_not_there_is_told_within_seconds(s3: S3) -> None:
    error = fit_at("s3://some-bucket/runs?scheme=http&endpoint_override=127.0.0.1:9&region=us-east-1")
    assert "some-bucket" in str(error)


def test_no_secret_of_a_uri_is_in_any_log_error_or_file(tmp_path: Path, tally: Tally, s3: S3, bucket: str) -> None:
    lane = lane_on(tmp_path, tally, s3.uri(f"{bucket}/runs", f"{KEY}:{SECRET}@"), log_level="DEBUG", mode="MIXED")
    said = []
    s3.mood(every=13)
    assert lane.live(num_steps=2) == 0, lane.output
    said.append(lane.output)
    s3.mood()
    with lane.start() as first:
        assert first.stdout is not None
        first.stdout.readline()
        assert lane.live(num_steps=1) == 1
        said.append(lane.output)
        s3.mood(deny=True)
        assert first.wait(30) == 1
    said += [Path(tmp_path, "life-2").read_text(), *lane.told().errors]
    s3.mood()
    folder = StorageLocation.open(lane.uri)
    said += [str((folder / e.path).read()) for e in folder.listing(recursive=True) if "model" not in e.path]
    said += [
        repr(RunConfig(storage_path=lane.plan.storage_path)),
        repr(Result.from_path(lane.uri)),
        str(lane.run),
        repr(lane.run),
    ]
    assert len(said) > 10
    for text in said:
        assert KEY not in text
        assert SECRET not in text
