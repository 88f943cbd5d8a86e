"""A Ray cluster on this machine, which the tests that ask for it share."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def _cluster() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        import ray

        ray.init(address="local", include_dashboard=False, num_cpus=4, log_to_driver=False, logging_level=logging.ERROR)
        yield
        ray.shutdown()


@pytest.fixture
def cluster(_cluster: None) -> Iterator[None]:
    """A cluster of one node with 4 CPUs, which the test leaves as it was."""
    from tests.distributed.on_ray import assert_clean

    yield
    assert_clean()
