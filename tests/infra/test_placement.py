"""How groups are laid on nodes and devices: pure functions of what a cluster has."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.errors import UsageError
from turnout.infra import DeviceGroup, Platform
from turnout.infra.device_group import settled_groups
from turnout.infra.handles import peers_of
from turnout.infra.platforms import CPUPlatform, CUDAPlatform, NPUPlatform, platform_of
from turnout.infra.ray.resource_manager import Node, Want, chosen_nodes, wanted


def node(name: str, gpus: float, cpus: float, free_gpus: float | None = None) -> Node:
    total = {"GPU": gpus, "CPU": cpus}
    return Node(name, name, total, {**total, "GPU": gpus if free_gpus is None else free_gpus})


def test_ranks_go_to_nodes_in_order_and_cpu_groups_have_placement_groups_of_their_own() -> None:
    groups = settled_groups([
        DeviceGroup("model", list(range(8)), "cuda"), DeviceGroup("sampler", [8, 9], "cuda"),
        DeviceGroup("rewards", 3), DeviceGroup("readers", 1), DeviceGroup("chips", 2, "npu"),
    ])  # fmt: skip
    wants = wanted(groups, 8, 2)
    assert wants == [
        Want("cuda", None, 0, "GPU", 8), Want("cuda", None, 1, "GPU", 2), Want("npu", None, 0, "NPU", 2),
        Want("cpu", "rewards", 0, "CPU", 2), Want("cpu", "rewards", 1, "CPU", 1), Want("cpu", "readers", 0, "CPU", 1),
    ]  # fmt: skip
    assert wants[0].resources(33) == {"GPU": 8.0, "CPU": 16.0}
    assert wants[0].resources(1) == {"GPU": 8.0}
    assert wants[3].resources(33) == {"CPU": 2.0}


def test_a_rank_means_the_device_of_its_own_number_on_its_node() -> None:
    (want,) = wanted([DeviceGroup("model", [5], "cuda")], 8, 8)
    assert want.amount == 6, "devices 0 to 5, so that rank 5 has the sixth"


def test_devices_of_one_worker_are_on_one_node() -> None:
    with pytest.raises(UsageError, match=re.escape("worker 1 has the ranks [3, 4], which are on different nodes")):
        wanted([DeviceGroup("model", [0, 1, 3, 4], "cuda", gpus_per_worker=2)], 4, 8)


def test_one_node_is_filled_after_another_by_what_is_free() -> None:
    wants = [Want("cuda", None, index, "GPU", 4) for index in range(3)]
    nodes = [node("a", 8, 16), node("b", 8, 16)]
    chosen = chosen_nodes(wants, nodes, of_free=True)
    assert chosen is not None
    assert [each.node_id for each in chosen] == ["a", "a", "b"]
    busy = [node("a", 8, 16, free_gpus=3), node("b", 8, 16)]
    assert chosen_nodes(wants, busy, of_free=True) is None
    assert chosen_nodes(wants, busy, of_free=False) is not None
    assert chosen_nodes([Want("cuda", None, 0, "GPU", 9)], nodes, of_free=False) is None


def test_physical_devices_are_those_that_ray_gives_or_the_environment_names() -> None:
    cuda, environment = CUDAPlatform(), {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}
    assert cuda.physical_devices(["10", "2", "7"], environment) == ["2", "7", "10"]
    assert cuda.physical_devices([], environment) == ["GPU-a", "GPU-b"]
    assert cuda.physical_devices([], {}) == []
    assert cuda.worker_variables(["3", "5"]) == {
        "CUDA_VISIBLE_DEVICES": "3,5", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    }  # fmt: skip
    assert NPUPlatform().worker_variables(["0"]) == {
        "ASCEND_RT_VISIBLE_DEVICES": "0", "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",
    }  # fmt: skip
    assert CPUPlatform().worker_variables([]) == {}


class Toy(Platform):
    name = "toy"
    resource = "TOY"
    visible_devices_variable = "TOY_VISIBLE"
    backend = "gloo"

    def is_present(self) -> bool:
        return False


def test_platforms_of_other_packages_come_by_their_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("toy", f"{__name__}:Toy", "turnout.platforms"),
        EntryPoint("bad", "os:sep", "turnout.platforms"),
    ]
    monkeypatch.setattr(EntryPoint, "load", lambda point: Toy if point.name == "toy" else "/")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    assert isinstance(platform_of("toy"), Toy)
    with pytest.raises(UsageError, match="is no class of turnout's Platform"):
        platform_of("bad")
    with pytest.raises(UsageError, match="there are the platforms cuda, npu, cpu, toy, bad"):
        platform_of("tpu")


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 6))
def test_peers_map_in_blocks_and_every_worker_serves_someone(small: int, times: int) -> None:
    for callers, workers in ((small, small * times), (small * times, small)):
        served = [list(peers_of(rank, callers, workers)) for rank in range(callers)]
        assert all(served)
        assert sorted({worker for each in served for worker in each}) == list(range(workers))
        if callers <= workers:
            assert [worker for each in served for worker in each] == list(range(workers))
    with pytest.raises(UsageError, match="one number must divide the other"):
        peers_of(0, 2, 3)
