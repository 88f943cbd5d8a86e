"""A program that trains, with checkpoints whose every byte is a function of the step; made to be killed and run again.

    python tests/crash/train_program.py '{"storage_path": "/tmp/results", "notes": "/tmp/notes"}'

It notes, in a file outside of the run's folder that is on the disk before the next step begins, what it was promised:

    entered <step>      the train function has begun, from the checkpoint of that step; -1 from none
    begun <step>        a checkpoint of that step is about to be reported
    taken <step>        its report has returned, in whatever mode
    returned <step>     it and all before are committed: a SYNC `report` has returned, or the run was asked and says so
    error <text>        what `fit()` raised
    left <names>        threads and processes that are still there after `fit()`

"reported" goes to the standard output after the first report, for whoever wants to strike then.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import random
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import turnout
from turnout import Checkpoint, CheckpointConfig, CheckpointConsistencyMode, CheckpointUploadMode
from turnout.testing.faults import arm_from_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a life of the program does.

    Args:
        storage_path: of the run.
        notes: the file for the notes.
        name: the run's.
        mode: ``"SYNC"``, ``"ASYNC"``, or ``"MIXED"``, which is ASYNC with a SYNC report every third time.
        num_steps: that are taken in one life.
        num_to_keep: as in `CheckpointConfig`.
        by_score: whether retention ranks by `score`; else by age.
        large_bytes: the size of one further file.
        lease_s: how long the lease holds; None leaves it as it is.
        drain_timeout_s: as in `CheckpointConfig`.
        asks: in ASYNC mode, ask every third step what is committed; it waits for the uploads.
        log_level: of the log on the standard error.
    """

    storage_path: str
    notes: str
    name: str = "run"
    mode: str = "SYNC"
    num_steps: int = 1_000_000
    num_to_keep: int | None = None
    by_score: bool = False
    large_bytes: int = 0
    lease_s: float | None = None
    drain_timeout_s: float = 60.0
    asks: bool = True
    log_level: str = "WARNING"


def payload(step: int, large_bytes: int = 0) -> dict[str, bytes]:
    """The files of a step's checkpoint."""
    source = random.Random(step)
    files = {
        "model.bin": source.randbytes(30_000 + step % 7 * 1_000),
        "optimizer/state.bin": source.randbytes(5_000),
        "optimizer/groups/0.json": json.dumps({"step": step}).encode(),
        "empty": b"",
    }
    if large_bytes:
        files["large.bin"] = source.randbytes(large_bytes)
    return files


def score(step: int) -> float:
    """The metric that ranks a step's checkpoint: any order, and now and then none."""
    return math.nan if step % 7 == 3 else int.from_bytes(hashlib.sha256(str(step).encode()).digest()[:2]) / 2**16


def read_folder(folder: str) -> dict[str, bytes]:
    """All files in a checkpoint's folder but its record."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    found.pop(".turnout.json", None)
    return found


class Notes:
    """Lines that are on the disk when the call returns."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, word: str, value: object) -> None:
        os.write(self._handle, f"{word} {value}\n".encode())
        os.fsync(self._handle)


def main(plan: Plan) -> None:
    notes = Notes(plan.notes)
    config = CheckpointConfig(
        num_to_keep=plan.num_to_keep,
        checkpoint_score_attribute="score" if plan.by_score else None,
        drain_timeout_s=plan.drain_timeout_s,
    )
    trainer = turnout.DataParallelTrainer(
        functools.partial(train, plan, notes),
        scaling_config=turnout.ScalingConfig(num_workers=0),
        run_config=turnout.RunConfig(
            name=plan.name,
            storage_path=plan.storage_path,
            checkpoint_config=config,
            logging_config=turnout.LoggingConfig(log_level=plan.log_level),
        ),
    )
    try:
        with shorter_lease(plan.lease_s):
            trainer.fit()
    except BaseException as error:
        notes.add("error", f"{type(error).__name__}: {error}".replace("\n", " "))
        raise
    finally:
        notes.add("left", " ".join(sorted(left_behind())))


def train(plan: Plan, notes: Notes) -> None:
    start = first_step(plan)
    notes.add("entered", start - 1)
    work = f"{plan.notes}.work"
    shutil.rmtree(work, ignore_errors=True)
    for step in range(start, start + plan.num_steps):
        is_sync = plan.mode == "SYNC" or (plan.mode == "MIXED" and step % 3 == 2)
        folder = os.path.join(work, str(step))
        write_folder(folder, payload(step, plan.large_bytes))
        notes.add("begun", step)
        turnout.report(
            {"step": step, "score": score(step)},
            Checkpoint(folder),
            checkpoint_upload_mode=CheckpointUploadMode.SYNC if is_sync else CheckpointUploadMode.ASYNC,
        )
        notes.add("taken", step)
        if plan.mode == "ASYNC" and plan.asks and step % 3 == 2:
            turnout.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
            is_sync = True
        if is_sync:
            notes.add("returned", step)
        if step == start:
            os.write(1, b"reported\n")
        shutil.rmtree(folder, ignore_errors=True)


def first_step(plan: Plan) -> int:
    checkpoint = turnout.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        files = read_folder(folder)
    step: int = json.loads(files["optimizer/groups/0.json"])["step"]
    if files != payload(step, plan.large_bytes):
        raise AssertionError(f"{checkpoint} was given to go on from, and differs from what was reported")
    return step + 1


def write_folder(folder: str, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        with open(os.path.join(folder, path), "wb") as file:
            file.write(data)


def shorter_lease(lease_s: float | None) -> contextlib.AbstractContextManager[object]:
    """Half a minute is long for a test that waits for a lease to run out."""
    if lease_s is None:
        return contextlib.nullcontext()
    from unittest import mock  # not needed by most lives, whose start is to be quick

    from turnout.storage import Lease

    return mock.patch("turnout.runtime.stored.Lease", functools.partial(Lease, duration_s=lease_s))


def left_behind() -> Iterator[str]:
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            yield f"thread:{thread.name.replace(' ', '_')}"
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
            yield from (f"process:{pid}" for pid in file.read().split())


if __name__ == "__main__":
    arm_from_environment()
    main(Plan(**json.loads(sys.argv[1])))
