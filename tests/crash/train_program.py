"""A program that trains, with checkpoints whose every byte is a function of the step; made to be killed and run again.

    python tests/crash/train_program.py '{"storage_path": "/tmp/results", "notes": "/tmp/notes"}'

It notes, in a file outside of the run's folder that is on the disk before the next step begins, what it was promised:

    entered <step>      the train function has begun, from the checkpoint of that step; -1 from none
    begun <step>        a checkpoint of that step is about to be reported
    taken <step>        its report has returned, in whatever mode
    returned <step>     it and all before are committed: a SYNC `report` has returned, or the run was asked and says so
    pid <rank> <pid>    a rank is about to enter the train function
    error <text>        what `fit()` raised
    left <names>        threads and processes that are still there after `fit()`

"reported" goes to the standard output after the first report, for whoever wants to strike then. With several ranks each
notes for itself, and the driver says "failed" after an attempt that has, and waits for a line from whoever looks.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import turnout
from turnout import Checkpoint, CheckpointConfig, CheckpointConsistencyMode, CheckpointUploadMode
from turnout.failpoints import arm
from turnout.testing.faults import Fault, arm_from_environment, environment


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
        num_workers: 0 for this process, else ranks of the process track.
        max_failures: as in `FailureConfig`.
        is_killed: at its end, when all is committed and the history is not sealed: that costs the import of pyarrow.
        strikes: what strikes which rank, by the number of the attempt: point, passing, rank, and what happens: the
            action of a `Fault`, or ``"kill_driver"``.
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
    num_workers: int = 0
    max_failures: int = 0
    is_killed: bool = False
    strikes: list[tuple[str, int, int, str]] = field(default_factory=list)


def payload(step: int, large_bytes: int = 0, num_workers: int = 0) -> dict[str, bytes]:
    """The files of a step's checkpoint, as they are to lie in its folder."""
    files = files_of(0, step, large_bytes, num_workers)
    for rank in range(1, num_workers):
        for path, data in files_of(rank, step, 0, num_workers).items():
            files[path if files.get(path, data) == data else f"rank_{rank}/{path}"] = data
    return files


def files_of(rank: int, step: int, large_bytes: int = 0, num_workers: int = 0) -> dict[str, bytes]:
    """What a rank brings: all of it alone; else files of its own, one that all have, and one that differs."""
    if num_workers:
        source = random.Random(f"{step} {rank}")
        own = {
            f"optimizer/{rank}.bin": source.randbytes(20_000 + step % 7 * 1_000),
            "model.bin": source.randbytes(9_000),
        }
        if rank:
            return {**own, "empty": b""}
        return {**own, "empty": b"", "optimizer/groups/0.json": json.dumps({"step": step}).encode()}
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
        self._path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __reduce__(self) -> tuple[type[Notes], tuple[str]]:
        return Notes, (self._path,)

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
        functools.partial(train, plan, notes, os.getpid()),
        scaling_config=turnout.ScalingConfig(
            num_workers=plan.num_workers, controller="process" if plan.num_workers else None
        ),
        run_config=turnout.RunConfig(
            name=plan.name,
            storage_path=plan.storage_path,
            checkpoint_config=config,
            failure_config=turnout.FailureConfig(max_failures=plan.max_failures),
            callbacks=[Pause()] if plan.max_failures else None,
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


class Pause(turnout.UserCallback):
    """Lets whoever looks have a look after every attempt that has failed."""

    def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
        os.write(1, b"failed\n")
        os.read(0, 1)


def train(plan: Plan, notes: Notes, driver: int) -> None:
    rank = turnout.get_context().get_world_rank()
    attempt = turnout.get_context().get_storage()._run.current_attempt()
    if plan.num_workers:
        arm_in_rank(plan, attempt, rank, driver)
        logging.getLogger("turnout.storage.commit").setLevel(logging.ERROR)  # a warning for each file that differs
    notes.add("pid", f"{rank} {os.getpid()}")
    start = first_step(plan)
    notes.add("entered", start - 1)
    work = f"{plan.notes}.work-{rank}"
    shutil.rmtree(work, ignore_errors=True)
    for step in range(start, start + plan.num_steps):
        is_sync = plan.mode == "SYNC" or (plan.mode == "MIXED" and step % 3 == 2)
        folder = os.path.join(work, str(step))
        write_folder(folder, files_of(rank, step, plan.large_bytes, plan.num_workers))
        notes.add("begun", step)
        turnout.report(
            {"step": step, "score": score(step)},
            Checkpoint(folder),
            checkpoint_upload_mode=CheckpointUploadMode.SYNC if is_sync else CheckpointUploadMode.ASYNC,
        )
        notes.add("taken", step)
        if plan.mode == "ASYNC" and plan.asks and step % 3 == 2:
            is_sync = is_committed(step, attempt)
        if is_sync:
            notes.add("returned", step)
        if step == start and rank == 0:
            os.write(1, b"reported\n")
        shutil.rmtree(folder, ignore_errors=True)
    if plan.is_killed:
        turnout.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
        os.kill(os.getpid(), signal.SIGKILL)


def is_committed(step: int, attempt: int) -> bool:
    """Whether the run says so, once it has waited for the uploads; one that has failed is not."""
    reported = turnout.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
    if not reported or reported[-1].metrics["step"] != step:
        return False
    # If this attempt has been superseded, the newer one may list that step of its own.
    name = os.path.basename(reported[-1].checkpoint.path)
    return name.partition("-a")[2] == (str(attempt) if attempt else "")


def arm_in_rank(plan: Plan, attempt: int, rank: int, driver: int) -> None:
    if attempt >= len(plan.strikes) or plan.strikes[attempt][2] != rank:
        return
    point, on_hit, _, action = plan.strikes[attempt]
    if action != "kill_driver":
        arm_from_environment(environment(Fault(point=point, action=action, on_hit=on_hit)))
        return
    passings = itertools.count(1)

    def kill_driver(name: str, at: int | None, data: bytes | None) -> None:
        if name == point and next(passings) == on_hit:
            os.kill(driver, signal.SIGKILL)  # and go on, as far as one comes

    arm(kill_driver)


def first_step(plan: Plan) -> int:
    checkpoint = turnout.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        files = read_folder(folder)
    step: int = json.loads(files["optimizer/groups/0.json"])["step"]
    if files != payload(step, plan.large_bytes, plan.num_workers):
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

    from turnout.storage.lease import Lease

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
