"""Fixtures of the storage tests: one S3 server for all of them, and a storage of each kind."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.s3_fixtures import bucket, s3, s3_server  # noqa: F401  # pytest finds them here
from tests.storage.helpers import started
from turnout.retry import RetryPolicy
from turnout.storage.location import StorageLocation
from turnout.storage.run_folder import RunFolder

QUICK = RetryPolicy(deadline_s=10, first_delay_s=0.01, longest_delay_s=0.05)


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
