"""What the storage tests share: ranks as threads that meet, folders with known bytes, an S3 server with moods."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from turnout import Checkpoint
from turnout.storage.commit import CommitRequest, commit
from turnout.storage.location import StorageLocation
from turnout.storage.record import CommitRecord
from turnout.storage.run_folder import RunFolder


class Solo:
    """One rank alone."""

    rank = 0
    world_size = 1

    def gather(self, tag: str, value: Any) -> list[Any]:
        return [value]


class Ranks:
    """Ranks that are threads of this process; a rank that dies breaks every wait."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._barrier = threading.Barrier(world_size, timeout=30)
        self._values: list[Any] = [None] * world_size
        self.tags: list[str] = []

    def run(self, function: Callable[[Meeting], Any]) -> list[Any]:
        """What each rank returned or raised."""

        def call(rank: int) -> Any:
            try:
                return function(Meeting(self, rank))
            except Exception as error:
                return error

        with ThreadPoolExecutor(self.world_size) as pool:
            return list(pool.map(call, range(self.world_size)))

    def meet(self, rank: int, tag: str, value: Any) -> list[Any]:
        self._values[rank] = (tag, value)
        self._barrier.wait()
        met = list(self._values)
        self._barrier.wait()
        assert {each[0] for each in met} == {tag}, "ranks are out of step"
        if rank == 0:
            self.tags.append(tag)
        return [each[1] for each in met]


class Meeting:
    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.rank = rank
        self.world_size = ranks.world_size
        self._ranks = ranks

    def gather(self, tag: str, value: Any) -> list[Any]:
        return self._ranks.meet(self.rank, tag, value)


def folder_with(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def save(run: RunFolder, folder: Path | None, index: int, attempt: int = 0, **request: Any) -> CommitRecord:
    """Commit by one rank alone."""
    metrics = request.pop("metrics", {"step": index})
    checkpoint = None if folder is None else Checkpoint(folder)
    asked = CommitRequest(index=index, attempt=attempt, metrics=metrics, checkpoint=checkpoint, **request)
    record = commit(run, Solo(), asked)
    assert record is not None
    return record


def started(storage: StorageLocation, name: str = "run") -> RunFolder:
    run = RunFolder(storage, name)
    run.create({})
    run.begin_attempt("started")
    return run


def contents(location: StorageLocation) -> dict[str, bytes]:
    """All files of a checkpoint but its record."""
    entries = [entry for entry in location.listing(recursive=True) if not entry.is_folder]
    return {e.path: (location / e.path).read() or b"" for e in entries if e.path != ".turnout.json"}


class S3:
    """moto's server in a process of its own, which can be told to fail or to be slow."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("s3_server.py")
        self.process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)

    @functools.cached_property
    def endpoint(self) -> str:
        """Waits until it serves: it says its port then."""
        assert self.process.stdout is not None
        return f"127.0.0.1:{int(self.process.stdout.readline())}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def uri(self, place: str, user: str = "") -> str:
        return f"s3://{user}{place}?scheme=http&endpoint_override={self.endpoint}&region=us-east-1"

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(
            f"http://{self.endpoint}/{name}",
            method="PUT",
            headers={"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20300101/us-east-1/s3/aws4_request"},
        )
        urllib.request.urlopen(request, timeout=20).close()

    def mood(self, **mood: Any) -> dict[str, int]:
        """Tell it how to answer from now on: ``delay_s`` is slow, ``deny`` says 403, ``fail=n`` fails n times.

        ``every=n`` fails every nth request; what fails is answered by 500 and 503 in turn. ``method`` concerns that one
        alone.

        Returns:
            How many requests it has seen, failed and denied so far.
        """
        request = urllib.request.Request(f"http://{self.endpoint}/-mood", method="POST", data=json.dumps(mood).encode())
        with urllib.request.urlopen(request, timeout=20) as answer:
            counts: dict[str, int] = json.load(answer)
        return counts
