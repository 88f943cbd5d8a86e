"""Fixtures of the data tests: an S3 server."""

from __future__ import annotations

from tests.s3_fixtures import bucket, s3, s3_server  # noqa: F401  # pytest finds them here
