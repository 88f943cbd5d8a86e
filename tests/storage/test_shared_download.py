"""A remote checkpoint as a local folder: processes on a node share one download, which goes with the last of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.storage.helpers import S3, folder_with, save, started
from turnout import Checkpoint
from turnout.errors import CheckpointNotFoundError
from turnout.storage.location import StorageLocation
from turnout.storage.record import checkpoint_of

FILES = {"model.pt": b"weights" * 1000, "deep/x": b"x"}

USE = """
import os, sys, tempfile
from turnout import Checkpoint
with Checkpoint(sys.argv[1]).as_directory() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def copies(folder: Path) -> list[Path]:
    return [path for path in folder.glob("turnout-shared-*/*") if path.is_dir()]


@pytest.fixture
def remote(tmp_path: Path) -> Checkpoint:
    run = started(StorageLocation.open(f"memory://{tmp_path.name}-shared"))
    record = save(run, folder_with(tmp_path / "given", FILES), 0)
    return checkpoint_of(run.checkpoints / record.name)


def test_users_at_one_time_share_one_download_which_goes_with_the_last(
    remote: Checkpoint, own_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[Any] = []
    real = Checkpoint.to_directory

    def counted(self: Checkpoint, path: Any = None) -> str:
        downloads.append(path)
        return real(self, path)

    monkeypatch.setattr(Checkpoint, "to_directory", counted)
    together = threading.Barrier(8, timeout=30)

    def use(_: int) -> str:
        with remote.as_directory() as folder:
            assert (Path(folder) / "model.pt").read_bytes() == FILES["model.pt"]
            together.wait()
            assert (Path(folder) / "deep/x").read_bytes() == b"x"
            return folder

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(use, range(8)))) == 1
    assert len(downloads) == 1
    assert copies(own_temporary_folder) == []
    with remote.as_directory() as folder:
        assert len(copies(own_temporary_folder)) == 1
        assert os.path.isdir(folder)
    assert len(downloads) == 2


def test_a_download_that_fails_leaves_nothing_and_the_next_one_succeeds(
    remote: Checkpoint, own_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Checkpoint, path: Any = None) -> str:
        raise OSError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "to_directory", fail)
        with pytest.raises(OSError, match="gone"), remote.as_directory():
            pass
    assert copies(own_temporary_folder) == []
    with remote.as_directory() as folder:
        assert (Path(folder) / "deep/x").read_bytes() == b"x"


def test_a_checkpoint_that_is_not_there_is_said_to_be_so() -> None:
    with pytest.raises(CheckpointNotFoundError), Checkpoint("memory://nowhere/at/all").as_directory():
        pass


def test_processes_share_a_download_and_a_killed_one_keeps_nothing_alive(
    s3: S3, bucket: str, tmp_path: Path, own_temporary_folder: Path
) -> None:
    run = started(StorageLocation.open(s3.uri(f"{bucket}/results")))
    record = save(run, folder_with(tmp_path / "given", FILES), 0)
    uri = s3.uri(f"{bucket}/results/run/checkpoints/{record.name}")
    command = [sys.executable, "-c", USE, uri]
    users = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        folders = {user.stdout.readline().strip() for user in users if user.stdout}
        assert len(folders) == 1
        users[0].kill()
        users[0].wait()
        with Checkpoint(uri).as_directory() as mine:
            assert {mine} == folders
        assert os.path.isdir(mine)
        users[1].communicate(timeout=30)
        assert users[1].returncode == 0
        assert copies(own_temporary_folder) == []
    finally:
        for user in users:
            user.kill()
            user.wait()
            for stream in (user.stdin, user.stdout):
                if stream:
                    stream.close()
