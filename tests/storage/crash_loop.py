"""Kills a driver again and again, and looks after each death at what its run's folder offers; prints what it found.

Usage: ``crash_loop.py <folder> <seed> points`` or ``... random <number of kills>``. Every driver is a fork of this
process, so that nothing has to be imported again; its checkpoints' bytes follow from attempt and index, so that they
can be told from any others. It notes in a log that outlives it what has returned and what it is about to remove.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.storage.helpers import Meeting, Ranks, contents, folder_with
from turnout import Checkpoint, CheckpointConfig
from turnout.storage.commit import FAILPOINTS, CommitRequest, commit
from turnout.storage.lease import Lease
from turnout.storage.location import StorageLocation
from turnout.storage.reading import clean_uncommitted, committed, newest_verified, next_index, resume_point
from turnout.storage.record import read_record, verify
from turnout.storage.retention import Retention, choose_deletions
from turnout.storage.run_folder import RunFolder
from turnout.testing.faults import Fault, armed

OTHER_POINTS = (
    "run.before_attempt",
    "run.after_attempt",
    "retention.before",
    "remove.before_record",
    "remove.after_record",
    "remove.after",
)
CONFIG = CheckpointConfig(num_to_keep=3)


def expected(attempt: int, index: int) -> dict[str, bytes]:
    rng = random.Random(f"{attempt} {index}")
    files = {f"rank{rank}/{number} ü": rng.randbytes(rng.randrange(40_000)) for rank in range(2) for number in range(4)}
    files["shared"] = rng.randbytes(100)
    if index % 5 == 0:
        files["rank0/large"] = rng.randbytes(9 << 20)
    return files


def drive(storage: StorageLocation, log: int, fault: Fault | None, rng: random.Random) -> None:
    """A driver that never ends by itself."""
    run = RunFolder(storage, "run")
    Lease(run).acquire(wait=False)
    run.create({})
    with armed(*([fault] if fault else [])):
        attempt = run.begin_attempt("started again")
        clean_uncommitted(run)
        run.set_resume_point(resume_point(newest_verified(run, "full")))
        retention = Retention(run, CONFIG, committed(run))
        index = next_index(retention.records, run.info())
        while True:
            one_report(run, attempt, index, rng.random() < 0.5, retention, log)
            index += 1


def one_report(run: RunFolder, attempt: int, index: int, move: bool, retention: Retention, log: int) -> None:
    files = expected(attempt, index)
    with tempfile.TemporaryDirectory(dir=Path(run.location.parent.path).parent) as given:

        def report(meeting: Meeting) -> object:
            mine = {path: data for path, data in files.items() if path == "shared" or path[4] == str(meeting.rank)}
            folder = folder_with(Path(given) / str(meeting.rank), mine)
            asked = CommitRequest(
                index=index, attempt=attempt, metrics={"i": index}, checkpoint=Checkpoint(folder), move=move
            )
            return commit(run, meeting, asked)

        for outcome in Ranks(2).run(report):
            if isinstance(outcome, BaseException):
                raise outcome
    record = read_record(run.checkpoints / outcome.name)
    assert record is not None
    os.write(log, f"{record.name}\n".encode())
    retention.remember(record)
    for old in choose_deletions(retention.records, CONFIG):
        os.write(log, f"-{old.name}\n".encode())
    retention.apply()


def look(storage: StorageLocation, log: Path) -> tuple[int, list[str], list[str]]:
    """How many reports have returned so far, which of them are lost, and what is offered though it is torn."""
    run = RunFolder(storage, "run")
    lines = log.read_text().split("\n")
    returned = {line for line in lines if line and not line.startswith("-")}
    removed = {line[1:] for line in lines if line.startswith("-")}
    offered = committed(run) if run.exists() else []
    torn = []
    for record in offered:
        folder = run.checkpoints / record.name
        whole = verify(folder, "full", record) is None and contents(folder) == expected(record.attempt, record.index)
        if not whole:
            torn.append(record.name)
    lost = sorted(returned - removed - {record.name for record in offered})
    return len(returned), lost, torn


def kill_one(
    root: Path, storage: StorageLocation, fault: Fault | None, rng: random.Random, window_s: float = 0.0
) -> bool:
    """Start a driver and see it die; says whether it was killed, and not just came to an end.

    Without a fault it is killed within ``window_s``; 0 waits for its next report.
    """
    log = os.open(root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    child = os.fork()
    if child == 0:
        try:
            drive(storage, log, fault, rng)
        except BaseException as error:  # the edge of a process
            sys.stderr.write(f"driver: {type(error).__name__}: {error}\n")
        finally:
            os._exit(3)
    os.close(log)
    handle = os.pidfd_open(child)
    known = (root / "log").stat().st_size
    wait = 20.0 if fault else rng.uniform(0.0, window_s)
    died = bool(select.select([handle], [], [], wait)[0])
    while not died and not window_s and (root / "log").stat().st_size == known:
        died = bool(select.select([handle], [], [], 0.001)[0])
    os.close(handle)
    if not died:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and (died or fault is None)


def main() -> None:
    root, seed, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    rng = random.Random(seed)
    storage = StorageLocation.open(root / "storage")
    (root / "log").touch()
    if mode == "points":
        faults: list[Fault | None] = [
            Fault(point=point, action="kill", on_hit=hit)
            for point in (*FAILPOINTS, *OTHER_POINTS)
            for hit in ((1,) if point.startswith("run.") else (1, 2, 9))
        ]
    else:
        faults = [None] * int(sys.argv[4])
    begin = time.monotonic()
    window_s = 0.0
    if mode == "random":  # of moments that fall before, into and after the first reports, however fast this machine is
        kill_one(root, storage, None, rng)
        window_s = min(3 * (time.monotonic() - begin), 0.3)
    missed, lost, torn, kills, commits = [], set(), set(), 0, 0
    for fault in faults:
        if kill_one(root, storage, fault, rng, window_s):
            kills += 1
        else:
            missed.append(fault.point if fault else "random")
        commits, now_lost, now_torn = look(storage, root / "log")
        lost.update(now_lost)
        torn.update(now_torn)
        for left in root.glob("tmp*"):
            shutil.rmtree(left)
    found = {"kills": kills, "commits": commits, "lost": sorted(lost), "torn": sorted(torn), "missed": missed}
    sys.stdout.write(json.dumps({**found, "seconds": round(time.monotonic() - begin, 1)}) + "\n")


if __name__ == "__main__":
    main()
