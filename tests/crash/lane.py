"""A run that is killed and started again, and the audit of its folder after every death."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.train_program import Plan, payload, read_folder, score
from turnout import Result, StorageError
from turnout.storage.location import StorageLocation
from turnout.storage.reading import committed
from turnout.storage.record import CommitRecord, verify
from turnout.storage.run_folder import RunFolder
from turnout.testing.faults import Fault, environment

PROGRAM = Path(__file__).with_name("train_program.py")


@dataclass(slots=True, kw_only=True)
class Tally:
    """What the suite has done to how many runs, and what came of it."""

    kills: int = 0
    by_kind: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    mid_commit: int = 0
    """Kills that left a folder without a record."""
    commits: int = 0
    """Checkpoints whose report had returned."""
    read_back: int = 0
    """Checkpoints that were read whole, all audits together."""
    lost: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.by_kind.items()))
        return (
            f"{self.kills} kills ({kinds}; {self.mid_commit} in the middle of a commit), {self.commits} commits whose "
            f"report had returned, {self.read_back} checkpoints read back byte for byte, lost {len(self.lost)}, "
            f"torn {len(self.torn)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The notes of all lives so far."""

    entered: list[int]
    begun: set[int]
    taken: int
    """The newest step whose report has returned in any mode; -1 if none is."""
    returned: int
    """The newest step that is known to be committed, with all before it; -1 if none is."""
    errors: list[str]
    left: list[str]
    pids: dict[int, int]
    """The newest process of each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a run's folder offers."""

    steps: list[int]
    lost: list[int]
    torn: list[str]

    @property
    def newest(self) -> int:
        """-1 if there is none."""
        return self.steps[-1] if self.steps else -1


class Program(subprocess.Popen[str]):
    """A program that does not outlive its block, however that ends."""

    def __exit__(self, *failure: object) -> None:
        self.kill()
        super().__exit__(*failure)  # type: ignore[arg-type]


class Lane:
    """One run, and the programs that drive it one after another.

    Args:
        folder: for the run, the notes and the programs' output.
        tally: counts what happens here too.
        plan: how the program trains; see `train_program.Plan`.
    """

    def __init__(self, folder: Path, tally: Tally, **plan: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.tally = tally
        self.plan = Plan(**{"storage_path": str(folder / "storage"), "notes": str(folder / "notes"), **plan})
        self.variables: dict[str, str] = {}
        self._num_lives = 0
        self._num_entered = 0
        self._newest: int | None = None
        self._num_returned = 0

    @property
    def path(self) -> Path:
        """The run's folder, on the local disk."""
        return Path(self.plan.storage_path) / self.plan.name

    @property
    def uri(self) -> str:
        """The run's folder, for `Result.from_path`."""
        place, separator, query = self.plan.storage_path.partition("?")
        return f"{place}/{self.plan.name}{separator}{query}"

    @property
    def run(self) -> RunFolder:
        """The same for those who look inside."""
        return RunFolder.at(StorageLocation.open(self.uri))

    @property
    def output(self) -> str:
        """What the newest program said on its standard error."""
        return (self.folder / f"life-{self._num_lives}").read_text()

    # -- lives

    def start(self, *faults: Fault, **changes: Any) -> Program:
        """Start the program; it is killed at the end of its ``with`` block."""
        plan = dataclasses.replace(self.plan, **changes)
        self._num_lives += 1
        command = [sys.executable, str(PROGRAM), json.dumps(dataclasses.asdict(plan))]
        variables = {
            **os.environ,
            "TURNOUT_CRASH_LANE": str(self.folder),
            **self.variables,
            **(environment(*faults) if faults else {}),
        }
        with open(self.folder / f"life-{self._num_lives}", "w", encoding="utf-8") as output:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            return Program(command, stderr=output, env=variables, **pipes)

    def live(self, *faults: Fault, timeout_s: float = 50, **changes: Any) -> int:
        """Start the program and wait for its end; returns its status."""
        with self.start(*faults, **changes) as process:
            return process.wait(timeout_s)

    def kill(self, process: subprocess.Popen[str], kind: str) -> None:
        """Kill a program, and count it."""
        process.kill()
        if process.wait() == -signal.SIGKILL:
            self.count(kind)

    def count(self, kind: str) -> None:
        """A program was killed."""
        names = {record.name for record in committed(self.run)}
        self.tally.mid_commit += bool(set(self.run.folder_names()) - names)
        self.tally.kills += 1
        self.tally.by_kind[kind] += 1

    def processes(self) -> Iterator[str]:
        """What runs of the programs that were started, by the variable that they have inherited: pid and state."""
        mark = f"TURNOUT_CRASH_LANE={self.folder}\0".encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if mark in Path("/proc", pid, "environ").read_bytes():
                    yield f"{pid} {Path('/proc', pid, 'stat').read_text().rpartition(')')[2][:2].strip()}"

    # -- what is left of it

    def told(self) -> Told:
        """Read the notes."""
        return read_notes(self.plan.notes)

    def expects(self, newest: int) -> None:
        """The next life goes on from this step, whatever the last audit found."""
        self._newest = newest

    def audit(self) -> Audit:
        """Read the folder as anyone would; raise if it holds less, or other, than was promised.

        Raises:
            AssertionError: with all that is wrong.
        """
        told = self.told()
        records = self._offered(told)
        steps = [record.metrics["step"] for record in records]
        torn = [
            f"{self.run.checkpoints / record.name}: {reason}" for record in records if (reason := self._torn(record))
        ]
        lost = sorted(self._promised(max([told.returned, *steps])) - set(steps))
        self.tally.lost += [f"{self.path} step {step}" for step in lost]
        self.tally.torn += torn
        self.tally.read_back += len(steps)
        self.tally.commits += told.returned + 1 - self._num_returned
        self._num_returned = told.returned + 1
        assert not lost, f"{self.path}: lost {lost}; offered {steps}, returned up to {told.returned}"
        assert not torn, torn
        assert steps == sorted(set(steps)), f"{self.path}: offered twice or out of order: {steps}"
        assert set(steps) <= told.begun, f"{self.path}: offered and never reported: {set(steps) - told.begun}"
        entered = told.entered[self._num_entered :]
        if self._newest is not None:
            assert set(entered) <= {self._newest}, f"{self.path}: entered from {entered}, not from {self._newest}"
        self._num_entered = len(told.entered)
        audit = Audit(steps=steps, lost=lost, torn=torn)
        self._newest = audit.newest
        return audit

    def _offered(self, told: Told) -> Sequence[CommitRecord]:
        try:
            result = Result.from_path(self.uri)
        except StorageError:
            assert told.returned < 0, f"{self.path} cannot be read, and held checkpoints"
            return []
        records = committed(self.run)
        names = [record.name for record in records]
        assert sorted(checkpoint.path.rpartition("/")[2] for checkpoint, _ in result.best_checkpoints or ()) == sorted(
            names
        )
        newest = None if result.checkpoint is None else result.checkpoint.path.rpartition("/")[2]
        assert newest == (names[-1] if names else None)
        return records

    def _torn(self, record: CommitRecord) -> str | None:
        folder = self.run.checkpoints / record.name
        if (reason := verify(folder, "full", record)) is not None:
            return reason
        found = read_folder(folder.path) if folder.is_local else read_remote(folder)
        if found != payload(record.metrics["step"], self.plan.large_bytes, self.plan.num_workers):
            return "it differs from what was reported"
        return None

    def _promised(self, newest: int) -> set[int]:
        """Which of the steps up to ``newest``, all of which are committed, retention must have left."""
        steps = range(newest + 1)
        count = self.plan.num_to_keep
        if count is None:
            return set(steps)
        ranked = sorted(steps, key=self._rank, reverse=True)
        return {*ranked[:count], *([newest] if newest >= 0 else [])}

    def _rank(self, step: int) -> tuple[float, int]:
        value = score(step) if self.plan.by_score else float(step)
        return (value if value == value else float("-inf"), step)  # NaN differs from itself


def read_notes(path: str) -> Told:
    """What programs have noted in a file."""
    words: dict[str, list[str]] = defaultdict(list)
    with suppress(FileNotFoundError):
        for line in Path(path).read_text().splitlines():
            word, _, rest = line.partition(" ")
            words[word].append(rest)
    return Told(
        entered=[int(each) for each in words["entered"]],
        begun={int(each) for each in words["begun"]},
        taken=max(map(int, words["taken"]), default=-1),
        returned=max(map(int, words["returned"]), default=-1),
        errors=words["error"],
        left=words["left"],
        pids={int(rank): int(pid) for rank, pid in map(str.split, words["pid"])},
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look again and again, as a file tells nobody that it has come."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.002)


def read_remote(folder: StorageLocation) -> dict[str, bytes]:
    """As `read_folder`."""
    entries: Iterable[str] = [entry.path for entry in folder.listing(recursive=True) if not entry.is_folder]
    return {path: (folder / path).read() or b"" for path in entries if path != ".turnout.json"}
