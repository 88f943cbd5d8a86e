"""What ranks print is once in their files and once on the console, whatever they print and whatever comes between."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

import turnout
from tests.storage.helpers import S3, started
from turnout import DataParallelTrainer, FailureConfig, Result, RunConfig, ScalingConfig
from turnout.collective import barrier
from turnout.storage.location import StorageLocation
from turnout.storage.logs import RunLogs, read_log
from turnout.storage.run_folder import RunFolder
from turnout.testing.faults import Fault, armed

TWO_RANKS = ScalingConfig(num_workers=2, controller="process")


def test_logs_come_back_as_they_were_added_each_with_its_own(run: RunFolder) -> None:
    logs = RunLogs(run)
    for number in range(20):
        logs.add(f"rank_{number % 2}", f"line {number}\n".encode())
        if number % 5 == 4:
            logs.flush()
    logs.add("rank_0", b"no end")
    logs.close()
    for rank, rest in ((0, b"no end"), (1, b"")):
        assert read_log(run, f"rank_{rank}") == b"".join(b"line %d\n" % n for n in range(rank, 20, 2)) + rest


def test_a_local_log_can_be_read_the_moment_that_it_was_added_to(local_run: RunFolder) -> None:
    logs = RunLogs(local_run)
    logs.add("rank_0", b"one\n")
    file = Path(local_run.logs.path, "rank_0.log")
    assert file.read_bytes() == b"one\n"
    logs.add("rank_0", b"two")
    assert file.read_bytes() == b"one\ntwo"
    assert not logs.has_waiting
    logs.close()


def test_a_log_goes_on_after_a_line_that_names_the_attempt(run: RunFolder) -> None:
    logs = RunLogs(run)
    logs.add("rank_0", b"first, cut sh")
    logs.begin_attempt(1)
    logs.add("rank_0", b"second\n")
    logs.add("rank_1", b"speaks for the first time\n")
    logs.close()
    after = RunLogs(run)  # of another driver
    after.begin_attempt(2)
    after.add("rank_0", b"third\n")
    after.close()
    lines = [line for line in read_log(run, "rank_0").decode().splitlines() if line]
    assert lines == ["first, cut sh", "--- attempt 1 ---", "second", "--- attempt 2 ---", "third"]
    assert read_log(run, "rank_1") == b"speaks for the first time\n"


def test_a_large_remote_log_has_several_segments_and_puts_each_full_one_once(s3: S3, bucket: str) -> None:
    run = started(StorageLocation.open(s3.uri(f"{bucket}/results")))
    logs = RunLogs(run)
    expected = b""
    for number in range(6):
        piece = bytes([65 + number]) * 400_000 + b"\n"
        expected += piece
        logs.add("rank_0", piece)
        logs.flush()
    logs.close()
    assert [entry.path for entry in run.logs.listing()] == ["rank_0-000000.log", "rank_0-000001.log"]
    assert read_log(run, "rank_0") == expected


def test_what_a_remote_storage_refuses_for_a_while_is_written_later(
    run: RunFolder,
) -> None:
    logs = RunLogs(run)
    with armed(Fault(point="put.before", action="raise", times=0)):
        for number in range(3):
            logs.add("rank_0", b"%d\n" % number)
            logs.flush()
    logs.close()
    assert read_log(run, "rank_0") == b"0\n1\n2\n"


def test_a_storage_that_takes_no_log_costs_a_bounded_memory_and_one_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    run = started(StorageLocation.open("memory://a-log-that-is-refused"))
    run.logs.put(b"a file in the way")
    logs = RunLogs(run)
    for _ in range(40):
        logs.add("rank_0", b"x" * (1 << 20))
    local = started(StorageLocation.open(tmp_path))
    Path(local.logs.path).write_bytes(b"a file in the way")
    refused = RunLogs(local)
    for _ in range(3):
        refused.add("rank_0", b"lost\n")
        refused.flush()
    refused.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1, warnings
    assert "cannot be kept" in warnings[0]
    assert sum(sys.getsizeof(getattr(log, "_waiting", b"")) for log in logs._logs.values()) < 40 << 20
    run.logs.delete()
    logs.close()
    log = read_log(run, "rank_0")
    assert log.count(b"x") == 17 << 20
    assert log.endswith(b"\n--- %d bytes are left out: the storage did not take them in time ---\n" % (23 << 20))


def prints_50_lines_and_warns() -> None:
    rank = turnout.get_context().get_world_rank()
    for number in range(50):
        print(f"rank {rank} is at step {number}")  # noqa: T201  # what the test is about
    logging.getLogger("of.the.user").warning("rank %d warns", rank)


def test_each_line_of_each_rank_is_once_in_its_file_and_once_on_the_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, prints_50_lines_and_warns)
    shown = Counter(capsys.readouterr().out.splitlines())
    for rank in range(2):
        lines = [*(f"rank {rank} is at step {number}" for number in range(50)), f"rank {rank} warns"]
        kept = Path(tmp_path, "run", "logs", f"rank_{rank}.log").read_text().splitlines()
        assert sorted(kept) == sorted(lines)
        assert [shown[f"[rank {rank}] {line}"] for line in lines] == [1] * 51
    assert shown.total() == 102


def prints_10_mb_of_one_line() -> None:
    if turnout.get_context().get_world_rank() == 1:
        sys.stdout.write("ab" * (5 << 20))
        sys.stdout.flush()
        print("\nthe next")  # noqa: T201  # what the test is about
    turnout.report({})


def test_10_mb_of_one_line_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, prints_10_mb_of_one_line)
    line, after = Path(tmp_path, "run", "logs", "rank_1.log").read_text().splitlines()
    assert line == "ab" * (5 << 20)
    assert after == "the next"
    assert f"[rank 1] {line}\n" in capsys.readouterr().out


def dies_in_the_middle_of_a_line_once(mark: Path) -> None:
    barrier()
    if turnout.get_context().get_world_rank() == 1:
        if not mark.exists():
            mark.touch()
            os.write(1, b"cut sh")
            os.kill(os.getpid(), 9)
        print("whole")  # noqa: T201  # what the test is about


def test_a_log_goes_on_after_an_attempt_that_died_in_the_middle_of_a_line(tmp_path: Path) -> None:
    fit(tmp_path, lambda: dies_in_the_middle_of_a_line_once(tmp_path / "mark"), max_failures=1)
    assert Path(tmp_path, "run", "logs", "rank_1.log").read_text() == "cut sh\n--- attempt 1 ---\nwhole\n"


def test_a_run_whose_logs_cannot_be_written_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path(tmp_path, "run").mkdir()
    Path(tmp_path, "run", "logs").write_text("a file in the way")
    fit(tmp_path, prints_50_lines_and_warns)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "what ranks print cannot be kept" in caplog.text


def test_ranks_logs_reach_an_object_store_while_they_train(s3: S3, bucket: str) -> None:
    storage = s3.uri(f"{bucket}/results")
    place = StorageLocation.open(storage)

    def train() -> int:
        print("early")  # noqa: T201  # what the test is about
        looks = 0
        while not (place / "run" / "logs" / "rank_0-000000.log").read():
            looks += 1
        print("late")  # noqa: T201  # what the test is about
        return looks

    fit(storage, train)
    for rank in range(2):
        assert read_log(RunFolder(place, "run"), f"rank_{rank}") == b"early\nlate\n"


def fit(storage: Path | str, train: object, max_failures: int = 0) -> Result:
    config = RunConfig(storage_path=storage, name="run", failure_config=FailureConfig(max_failures=max_failures))
    return DataParallelTrainer(train, scaling_config=TWO_RANKS, run_config=config).fit()  # type: ignore[arg-type]
