"""Fixtures of the storage tests: one S3 server for all of them, and a storage of each kind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.helpers import S3, started
from turnout.storage import RetryPolicy, RunFolder, StorageLocation

QUICK = RetryPolicy(deadline_s=10, first_delay_s=0.01, longest_delay_s=0.05)


@pytest.fixture(scope="session", autouse=True)
def s3_server() -> Iterator[S3]:
    """Started for all, as the police would take it for a leak of the first test that asks for it."""
    server = S3()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield s3_server
    s3_server.mood()


@pytest.fixture
def bucket(s3: S3) -> str:
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3.make_bucket(name)
    return name


@pytest.fixture(params=["local", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StorageLocation:
    if request.param == "local":
        return StorageLocation.open(tmp_path / "storage")
    if request.param == "memory":
        return StorageLocation.open(f"memory://{uuid.uuid4().hex}")
    server, name = request.getfixturevalue("s3"), request.getfixturevalue("bucket")
    return StorageLocation.open(server.uri(f"{name}/results"), retry=QUICK)


@pytest.fixture
def run(storage: StorageLocation) -> RunFolder:
    return started(storage)


@pytest.fixture
def local_run(tmp_path: Path) -> RunFolder:
    return started(StorageLocation.open(tmp_path / "storage"))
