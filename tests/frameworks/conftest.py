"""A Ray cluster for those tests that run on one; it is there before the police look for the first time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.conftest import _cluster, cluster

__all__ = ["_cluster", "cluster"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give it to tests of this folder that are marked, also where one of a test's parameters is."""
    for item in items:
        is_of_here = item.path.parent == Path(__file__).parent
        if is_of_here and isinstance(item, pytest.Function) and item.get_closest_marker("on_ray") is not None:
            item.fixturenames = ["_cluster", *item.fixturenames, "cluster"]  # of this item alone
