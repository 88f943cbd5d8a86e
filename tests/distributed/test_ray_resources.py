"""What a cluster cannot hold, or has not free just now: told with what was asked, what there is and what is short."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.on_ray import fit
from tests.distributed.within import rank
from turnout import ResourceError, ScalingConfig

pytestmark = pytest.mark.usefixtures("cluster")


def on_ray(num_workers: Any = 2, **scaling: Any) -> ScalingConfig:
    return ScalingConfig(num_workers, controller="ray", **scaling)


class OnWaiting(logging.Handler):
    """Does something once it is told that a run waits."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._action = action

    def emit(self, record: logging.LogRecord) -> None:
        if "waits for its workers" in record.getMessage():
            self.texts.append(record.getMessage())
            self._action()


@pytest.fixture
def holder() -> Any:
    """An actor of another program's, that holds 3 of the cluster's 4 CPUs."""
    import ray

    class Holder:
        def is_there(self) -> bool:
            return True

    remote: Any = ray.remote(Holder)
    actor = remote.options(num_cpus=3).remote()
    ray.get(actor.is_there.remote())
    yield actor
    ray.kill(actor)


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        (on_ray(8), "{CPU: 1} each, PACK, so 8 of CPU (in the whole cluster 4, free 4); short of CPU"),
        (on_ray(2, use_gpu=True), "2 of GPU (in the whole cluster 0, free 0); short of GPU"),
        (on_ray(2, placement_strategy="STRICT_SPREAD"), "no choice among its 1 node(s) holds them as STRICT_SPREAD"),
        (on_ray(2, label_selector={"zone": "nowhere"}), "on nodes with the labels {'zone': 'nowhere'}"),
        (on_ray(2, accelerator_type="H100"), "short of accelerator_type:H100"),
    ],
)  # fmt: skip
def test_what_the_whole_cluster_cannot_hold_is_refused_in_time(
    scaling: ScalingConfig, told: str, tmp_path: Path
) -> None:
    started = time.monotonic()
    with pytest.raises(ResourceError, match="cannot hold the workers") as caught:
        fit(rank, tmp_path, scaling_config=scaling)
    assert time.monotonic() - started < 10
    assert told in str(caught.value)


def test_what_is_only_busy_is_waited_for_and_told_of(holder: Any, tmp_path: Path) -> None:
    import ray

    watch = OnWaiting(lambda: ray.kill(holder))
    logging.getLogger("turnout").addHandler(watch)
    try:
        assert fit(rank, tmp_path).return_values == [0, 1]
    finally:
        logging.getLogger("turnout").removeHandler(watch)
    assert "so 2 of CPU (in the whole cluster 4, free 1); short of CPU" in watch.texts[0]


def test_the_wait_ends_when_the_user_says(holder: Any, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ResourceError, match=r"start_timeout_s=0.5: asked: 2 worker\(s\).*free 1\); short of CPU"):
        fit(rank, tmp_path, start_timeout_s=0.5)
    assert time.monotonic() - started < 5


def test_resources_are_fractions_and_the_user_s_own_too(tmp_path: Path) -> None:
    scaling = on_ray(6, resources_per_worker={"CPU": 0.5})
    assert fit(rank, tmp_path, scaling_config=scaling).return_values == [0, 1, 2, 3, 4, 5]
