"""Who sits where on a cluster, and what a cluster lacks: pure functions of what Ray tells."""

from __future__ import annotations

from typing import Any

import pytest

from turnout import ScalingConfig, UsageError
from turnout.cluster.devices import visible_devices
from turnout.cluster.placement import Bundles
from turnout.cluster.seats import Seat, Whereabouts, seated
from turnout.cluster.shortage import _fits


def test_ranks_go_by_node_with_the_driver_s_first_and_then_by_device() -> None:
    workers = [
        Whereabouts("b", "10.0.0.2", 1, ("10",)),
        Whereabouts("a", "10.0.0.1", 2, ("1",)),
        Whereabouts("b", "10.0.0.2", 3, ("9",)),
        Whereabouts("c", "10.0.0.3", 4),
        Whereabouts("a", "10.0.0.1", 5, ("0",)),
    ]
    assert seated(workers, "a") == [
        Seat(4, 0, 2, 0),
        Seat(1, 1, 2, 0),
        Seat(2, 0, 2, 1),
        Seat(0, 1, 2, 1),
        Seat(3, 0, 1, 2),
    ]
    assert [seat.worker for seat in seated(workers, "elsewhere")] == [2, 0, 4, 1, 3]


@pytest.mark.parametrize(
    ("config", "resources"),
    [
        ({}, {"CPU": 1.0}),
        ({"use_gpu": True}, {"CPU": 1.0, "GPU": 1.0}),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 0.5}}, {"GPU": 0.5}),
        ({"resources_per_worker": {"CPU": 0, "disk": 2}}, {"disk": 2.0}),
    ],
)
def test_a_worker_takes_a_cpu_unless_the_user_says_otherwise(
    config: dict[str, Any], resources: dict[str, float]
) -> None:
    assert Bundles.of(ScalingConfig(2, **config)).each == resources


def test_a_worker_that_takes_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"takes something"):
        Bundles.of(ScalingConfig(2, resources_per_worker={"CPU": 0}))


@pytest.mark.parametrize(
    ("strategy", "labels", "num_workers", "fits"),
    [
        ("PACK", None, 6, True),
        ("SPREAD", None, 7, False),
        ("STRICT_PACK", None, 4, True),
        ("STRICT_PACK", None, 5, False),
        ("STRICT_SPREAD", None, 2, True),
        ("STRICT_SPREAD", None, 3, False),
        ("PACK", {"zone": "x"}, 4, True),
        ("PACK", {"zone": "x"}, 5, False),
        ("PACK", {"zone": "!x"}, 6, True),
    ],
)
def test_whether_nodes_could_hold_all_workers(
    strategy: str, labels: dict[str, str] | None, num_workers: int, fits: bool
) -> None:
    nodes: list[dict[str, Any]] = [
        {"Resources": {"CPU": 4.5}, "Labels": {"zone": "x"}},
        {"Resources": {"CPU": 2.0}, "Labels": {"zone": "y"}},
        {"Resources": {}, "Labels": {}},
    ]
    bundles = Bundles(
        num_workers=num_workers,
        resources={"CPU": 1.0},
        strategy=strategy,
        labels=None if labels is None else [labels] * num_workers,
    )
    assert _fits(bundles, nodes) is fits


@pytest.mark.parametrize(
    ("gpus", "seen"),
    [
        ([("0",), ("1",)], [("0", "1"), ("0", "1")]),
        ([("3",), ("10",), ("1",)], [("1", "3", "10")] * 3),
        ([("2", "3"), ("0", "1")], [("0", "2", "1", "3")] * 2),
        ([("0",), ("0",), ("1",), ("1",)], [("0",), ("0",), ("1",), ("1",)]),
        ([(), ()], [(), ()]),
    ],
)
def test_a_rank_sees_its_node_s_gpus_with_its_own_at_its_local_rank(
    gpus: list[tuple[str, ...]], seen: list[tuple[str, ...]]
) -> None:
    workers = [Whereabouts("a", "10.0.0.1", number, each, each) for number, each in enumerate(gpus)]
    seats = seated(workers, "a")
    assert visible_devices(workers, seats, shows_all=True) == seen
    assert visible_devices(workers, seats, shows_all=False) == [gpus[seat.worker] for seat in seats]
    if len(seen[0]) > 1:
        assert all(seen[0][seat.local_rank : seat.local_rank + 1] == gpus[seat.worker][:1] for seat in seats)


def test_ranks_see_the_gpus_of_their_own_node_alone() -> None:
    workers = [Whereabouts(node, node, 0, (gpu,), (gpu,)) for node, gpu in (("a", "1"), ("b", "0"), ("a", "0"))]
    assert visible_devices(workers, seated(workers, "a"), shows_all=True) == [("0", "1"), ("0", "1"), ("0",)]
