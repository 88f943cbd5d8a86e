"""Runs a driver program on several ranks as torchrun would, each a whole process, in a tenth of a second.

The ranks are forked from the process track's warm server, which has imported torch already, and carry the variables
that torchrun sets; that they are ranks of Turnout's own server is taken away before the program starts. As torchrun's
agent does, the test's process serves the store by which they meet. Real runs of ``torchrun`` are in
``tests/distributed``.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from turnout.callback import UserCallback
from turnout.checkpoint import Checkpoint
from turnout.controllers.travel import dumps, loads, packed_error, traceback_text, unpacked_error
from turnout.environment import WORKER_VARIABLE
from turnout.errors import WorkerGroupError
from turnout.result import Result
from turnout.session import Channel
from turnout.session.events import Died, Failed, Finished, Log, RankInfo, WorkerEvent
from turnout.testing.forked import forking
from turnout.testing.leaks import police

T = TypeVar("T")

_HOST = "127.0.0.1"


def run_under_torchrun(
    program: Callable[[], T],
    *,
    world_size: int,
    callbacks: Sequence[UserCallback] = (),
    folder: str | None = None,
) -> list[T]:
    """Run ``program`` on every rank.

    What rank 0 logs is logged here as well.

    Args:
        program: runs on each.
        world_size: how many they are.
        callbacks: what those of rank 0 have remembered is brought home to them.
        folder: for the files of checkpoints in memory, which would end with their ranks; None for the system's.

    Returns:
        What the program returned, by rank.

    Raises:
        BaseException: rank 0's exception, or that of another rank if rank 0 has none; its traceback is in its notes.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without saying so

    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    work = _Program(program, callbacks, folder, store.port, logging.getLogger("turnout").getEffectiveLevel())
    words = dict(sorted(_last_words(work, world_size).items()))
    first = words[0]
    for record in first.records:
        logging.getLogger(record.name).handle(record)
    for callback, state in zip(callbacks, first.callbacks, strict=True):
        vars(callback).update(state)
    for word in words.values():
        if word.error is not None:
            raise word.error.unpacked()
    return [loads(word.value) for word in words.values()]


class _Raised(NamedTuple):
    """An exception that the program ended with, in the form in which it travels."""

    error: bytes
    failures: dict[int, bytes]
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> _Raised:
        failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
        return cls(
            packed_error(error), {rank: packed_error(each) for rank, each in failures.items()}, traceback_text(error)
        )

    def unpacked(self) -> BaseException:
        error = unpacked_error(self.error)
        if isinstance(error, WorkerGroupError):
            error.worker_failures = {rank: unpacked_error(each) for rank, each in self.failures.items()}
        error.add_note(f"as it was raised in the driver program:\n{self.traceback}")
        return error


class _Word(NamedTuple):
    """How the program ended on one rank."""

    value: bytes
    error: _Raised | None
    callbacks: list[dict[str, Any]]
    records: list[logging.LogRecord]


@dataclass(frozen=True)
class _Program:
    """What a forked process runs in a rank's place: it becomes one that torchrun has started."""

    program: Callable[[], Any]
    callbacks: Sequence[UserCallback]
    folder: str | None
    port: int
    log_level: int

    def __call__(self, channel: Channel) -> None:
        ranks = channel.ranks
        _become_torchruns(ranks, self.port)
        records = _collected_records(self.log_level)
        value, error = None, None
        try:
            with police():  # a second `fit()` finds what the first has left behind
                value = self.program()
        except BaseException as raised:
            error = raised
        word = _Word(
            value=_dumped(_brought_home(value, self.folder)),
            error=None if error is None else _Raised.of(error),
            callbacks=[dict(vars(callback)) for callback in self.callbacks] if ranks.rank == 0 else [],
            records=records if ranks.rank == 0 else [],
        )
        channel.publish(Finished(ranks.rank, word))


def _last_words(work: _Program, world_size: int) -> dict[int, _Word]:
    words: dict[int, _Word] = {}

    def take(event: WorkerEvent) -> None:
        if isinstance(event, Finished):
            words[event.rank] = event.value
        elif isinstance(event, Log):
            sys.stdout.write(event.data.decode(errors="replace"))
        elif isinstance(event, (Failed, Died)):
            raise AssertionError(f"a process of the harness has failed: {event}")

    forking("torchrun", work.program, world_size).run_attempt(work, take)
    return words


def _become_torchruns(ranks: RankInfo, port: int) -> None:
    for name in (WORKER_VARIABLE, "NODE_RANK"):
        os.environ.pop(name, None)
    os.environ.update(
        RANK=str(ranks.rank),
        LOCAL_RANK=str(ranks.local_rank),
        WORLD_SIZE=str(ranks.world_size),
        LOCAL_WORLD_SIZE=str(ranks.local_world_size),
        MASTER_ADDR=_HOST,
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )


class _Collector(logging.handlers.QueueHandler):
    """Keeps records in the form in which they travel."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # it has no queue
        self.records: list[logging.LogRecord] = []

    def enqueue(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _collected_records(level: int) -> list[logging.LogRecord]:
    collector = _Collector()
    logging.root.addHandler(collector)
    logging.getLogger("turnout").setLevel(level)
    return collector.records


def _dumped(value: Any) -> bytes:  # Any: whatever a program returns
    """A result as bytes, without return values that cannot travel: on its own rank each has its very value."""
    try:
        return dumps(value)
    except TypeError:
        if not isinstance(value, Result):
            raise
    value.return_value, value.return_values = None, []
    return dumps(value)


def _brought_home(value: Any, folder: str | None) -> Any:  # Any: whatever a program returns
    """A checkpoint in memory ends with its process: copy its files to where the test can read them."""
    if isinstance(value, Result) and value.path is None and value.checkpoint is not None:
        home = tempfile.mkdtemp(prefix="brought-home-", dir=folder)
        value.checkpoint = Checkpoint(shutil.copytree(value.checkpoint.path, home, dirs_exist_ok=True))
    return value
