"""`RunFolder`: where everything of a run lies, and ``run.json``, which counts its attempts.

::

    <storage_path>/<run name>/
      run.json, lease.json
      metrics.jsonl or metrics-<n>.jsonl, metrics.parquet
      checkpoints/checkpoint_000000/, checkpoint_000007-a1/, each with .turnout.json once it is committed
      logs/
"""

from __future__ import annotations

import json
import logging
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from turnout.checks import check_file_name, refused
from turnout.errors import CheckpointError, StorageError
from turnout.failpoints import failpoint
from turnout.filesystem import redacted
from turnout.storage.location import StorageLocation, fsync_folder

__all__ = ["Attempt", "ResumePoint", "RunFolder", "RunInfo", "checkpoint_name"]

logger = logging.getLogger(__name__)

_BAD = re.compile(r"\.bad(\.\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where an attempt went on from.

    Args:
        name: the checkpoint's folder; None if it began anew, with none of the run's own.
        attempt: that wrote it.
        index: its index; commits of older attempts beyond it no longer count.
    """

    name: str | None = None
    attempt: int = -1
    index: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to run the train function.

    Args:
        number: never used twice in a run's life.
        cause: why it was begun.
        time: when, in seconds since the epoch.
        resumed_from: where it went on from; None until that is decided.
    """

    number: int
    cause: str
    time: float
    resumed_from: ResumePoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What ``run.json`` holds.

    Args:
        version: Turnout's, that made the folder.
        python: the interpreter's version.
        spec: a summary of what was asked for, for people to read.
        created: when, in seconds since the epoch.
        status: ``"RUNNING"``, or how the last attempt ended.
        error: what it ended with, as text; None unless it failed.
        attempts: oldest first.
    """

    version: str
    python: str
    spec: dict[str, Any] = field(default_factory=dict)  # Any: whatever JSON can hold
    created: float
    status: str = "RUNNING"
    error: str | None = None
    attempts: tuple[Attempt, ...] = ()


def checkpoint_name(index: int, attempt: int) -> str:
    """The folder of a checkpoint that nobody gave a name; every rank computes the same."""
    return f"checkpoint_{index:06d}" + (f"-a{attempt}" if attempt else "")


class RunFolder:
    """A run's folder. It holds no state but its place: every question is answered by the storage.

    Args:
        storage: where runs are stored.
        name: the run's.

    Raises:
        UsageError: the name is none of a folder.
    """

    __slots__ = ("location", "name")

    def __init__(self, storage: StorageLocation, name: str) -> None:
        check_file_name("RunConfig.name", name, "a run's name")
        self.name = name
        self.location = storage / name

    @classmethod
    def at(cls, location: StorageLocation) -> RunFolder:
        """The run whose folder this is."""
        return cls(location.parent, location.name)

    def __eq__(self, other: object) -> bool:
        return self.location == other.location if isinstance(other, RunFolder) else NotImplemented

    def __hash__(self) -> int:
        return hash(("RunFolder", self.location))

    def __repr__(self) -> str:
        return f"RunFolder({str(self.location)!r})"

    # -- places

    @property
    def checkpoints(self) -> StorageLocation:
        """Where the checkpoints' folders lie."""
        return self.location / "checkpoints"

    @property
    def logs(self) -> StorageLocation:
        """Where the ranks' output lies."""
        return self.location / "logs"

    def checkpoint_path(self, name: str) -> StorageLocation:
        """The folder of the checkpoint ``name``.

        Raises:
            UsageError: it is no plain name of one folder, or one that Turnout uses itself.
        """
        check_file_name("checkpoint_dir_name", name, "a checkpoint's name")
        if name.startswith(".") or _BAD.search(name):
            raise refused("checkpoint_dir_name", name, "a name that begins with '.' or ends in '.bad' is Turnout's own")
        return self.checkpoints / name

    def folder_names(self) -> list[str]:
        """All folders under `checkpoints`, committed or not, without those that were set aside as bad."""
        entries = self.checkpoints.listing()
        return [e.path for e in entries if e.is_folder and not e.path.startswith(".") and not _BAD.search(e.path)]

    # -- run.json

    def exists(self) -> bool:
        """Whether there is anything of this run."""
        return (self.location / "run.json").is_file() or self.checkpoints.is_folder()

    def create(self, spec: Mapping[str, Any]) -> RunInfo:  # Any: whatever JSON can hold
        """Make the folder and its ``run.json``, unless it has one; returns what is there then.

        Args:
            spec: a summary of what was asked for; passwords and keys in it are left out.
        """
        info = self.info()
        if info is None:
            from turnout import __version__

            self.checkpoints.make_folder()
            summary = json.loads(json.dumps(dict(spec), default=str), parse_constant=float)
            info = RunInfo(
                version=__version__,
                python=platform.python_version(),
                spec=_without_secrets(summary),
                created=time.time(),
                attempts=self._attempts_seen(),
            )
            self._write(info)
            if self.location.is_local:
                fsync_folder(self.location.parent.path)
        return info

    def info(self) -> RunInfo | None:
        """What ``run.json`` says; None, with a warning if it is there but not whole.

        Raises:
            StorageError: the storage does not say.
        """
        place = self.location / "run.json"
        data = place.read()
        if data is None:
            return None
        try:
            body = json.loads(data)
            body["attempts"] = tuple(
                Attempt(**{**each, "resumed_from": ResumePoint(**point) if (point := each["resumed_from"]) else None})
                for each in body["attempts"]
            )
            return RunInfo(**body)
        except (ValueError, KeyError, TypeError):
            logger.warning("%s is cut short or damaged; the run goes on by what its checkpoints say", place)
            return None

    def begin_attempt(self, cause: str) -> int:
        """Take the next attempt's number; from here on no older attempt can commit.

        The caller holds the run's lease. Whatever is read of the checkpoints to resume from is read after this.

        Args:
            cause: why it is begun.
        """
        failpoint("run.before_attempt")
        info = self.info() or self.create({})
        number = max((each.number for each in info.attempts), default=-1) + 1
        attempts = (*info.attempts, Attempt(number=number, cause=cause, time=time.time()))
        self._write(replace(info, attempts=attempts, status="RUNNING", error=None))
        failpoint("run.after_attempt")
        return number

    def set_resume_point(self, point: ResumePoint) -> None:
        """Say where the current attempt went on from: commits of older attempts beyond it no longer count.

        Left unsaid, all of them count; a run that is begun anew says ``ResumePoint()`` at its first commit, and keeps
        the old ones until then.
        """
        info = self._require()
        *older, current = info.attempts
        self._write(replace(info, attempts=(*older, replace(current, resumed_from=point))))

    def current_attempt(self) -> int:
        """The number of the newest attempt; -1 before the first.

        Raises:
            StorageError: ``run.json`` is gone or unreadable.
        """
        return max((each.number for each in self._require().attempts), default=-1)

    def require_current(self, attempt: int) -> None:
        """Refuse an attempt that has been superseded.

        Raises:
            CheckpointError: a newer attempt has begun.
        """
        current = self.current_attempt()
        if current != attempt:
            newer = next((each for each in self._require().attempts if each.number == current), None)
            why = "" if newer is None else f", begun {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(newer.time))}"
            raise CheckpointError(
                f"run {self.name!r}: attempt {attempt} has been superseded by attempt {current}{why}, and can commit "
                f"nothing any more; this process should end ({self.location})"
            )

    def finish(self, status: str, error: str | None = None) -> None:
        """Say how the run ended: ``"FINISHED"``, ``"ERRORED"``, ``"ABORTED"``, and with which error."""
        self._write(replace(self._require(), status=status, error=error))

    # -- within

    def _require(self) -> RunInfo:
        info = self.info()
        if info is None:
            raise StorageError(f"{self.location / 'run.json'} is gone or damaged while the run is under way")
        return info

    def _write(self, info: RunInfo) -> None:
        self.location.make_folder()
        (self.location / "run.json").put((json.dumps(asdict(info), indent=2) + "\n").encode())

    def _attempts_seen(self) -> tuple[Attempt, ...]:
        """What folders' names say of earlier attempts, where ``run.json`` does not say it any more."""
        from turnout.storage.record import read_record

        numbers = set()
        for name in self.folder_names():
            record = read_record(self.checkpoints / name)
            match = re.search(r"-a(\d+)$", name)
            numbers.add(record.attempt if record else int(match[1]) if match else 0)
        return tuple(Attempt(number=n, cause="found in the folder", time=0.0) for n in sorted(numbers))


def _without_secrets(value: Any) -> Any:  # Any: what json.loads gave
    if isinstance(value, dict):
        hidden = re.compile(r"(?i)secret|password|passwd|token$|credential|access_?key")
        return {key: "***" if hidden.search(key) else _without_secrets(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    return redacted(value) if isinstance(value, str) else value
