"""Fixtures of an S3 server on this machine, for the test folders whose conftest imports them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.storage.helpers import S3

__all__ = ["bucket", "s3", "s3_server"]


@pytest.fixture(scope="session", autouse=True)
def s3_server() -> Iterator[S3]:
    """Started for all, as the police would take it for a leak of the first test that asks for it."""
    server = S3()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An S3 server in a good mood, and the keys to it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield s3_server
    s3_server.mood()


@pytest.fixture
def bucket(s3: S3) -> str:
    """The name of an empty one."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3.make_bucket(name)
    return name
