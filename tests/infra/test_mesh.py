"""Meshes: who is where, who has which data, and who shares what with whom."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.errors import UsageError
from turnout.infra import DeviceGroup, DeviceMesh
from turnout.infra.device_group import settled_groups
from turnout.infra.device_mesh import balanced
from turnout.infra.whoami import Turn, taking_the_turn_of

ORDER = ("fsdp", "pp", "dp", "cp", "tp")
sizes = st.fixed_dictionaries({}, optional={name: st.integers(1, 3) for name in ORDER})


def mesh_of(given_sizes: dict[str, int]) -> DeviceMesh:
    return DeviceMesh.from_sizes(**{f"{name}_size": size for name, size in given_sizes.items()})  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(sizes)
def test_the_rank_in_a_dimension_is_its_coordinate_and_an_absent_one_is_none(given_sizes: dict[str, int]) -> None:
    mesh = mesh_of(given_sizes)
    dims = [name for name in ORDER if name in given_sizes] or ["dp"]
    assert mesh.mesh_dim_names == tuple(dims)
    places = itertools.product(*(range(given_sizes.get(name, 1)) for name in dims))
    for rank, place in enumerate(places):
        with taking_the_turn_of(Turn(rank)):
            for name in (*ORDER, "ep"):
                expected = place[dims.index(name)] if name in dims else None
                assert getattr(mesh, f"{name}_rank") == expected
                assert getattr(mesh, f"{name}_world_size") == given_sizes.get(name, 1)
    with taking_the_turn_of(Turn(mesh.world_size)):
        assert mesh.data_rank is None
        assert mesh.dp_rank is None


@settings(deadline=None, max_examples=60)
@given(sizes)
def test_ranks_have_the_same_data_unless_they_differ_in_dp_or_fsdp(given_sizes: dict[str, int]) -> None:
    mesh = mesh_of(given_sizes)
    seen: dict[int, set[tuple[int, int]]] = {}
    for rank in range(mesh.world_size):
        place, data_rank = mesh.coordinate_of(rank), mesh.get_data_rank_from_global_rank(rank)
        assert place is not None
        assert data_rank is not None
        assert data_rank == place.get("dp", 0) * mesh.fsdp_world_size + place.get("fsdp", 0)
        seen.setdefault(data_rank, set()).add((place.get("dp", 0), place.get("fsdp", 0)))
    assert sorted(seen) == list(range(mesh.data_world_size))
    assert all(len(places) == 1 for places in seen.values())
    collecting = mesh.get_collect_ranks()
    assert [mesh.get_data_rank_from_global_rank(rank) for rank in collecting] == list(range(mesh.data_world_size))
    assert set(collecting) <= set(mesh.get_pp_last_ranks())


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 50), st.integers(1, 9))
def test_slices_are_contiguous_and_differ_by_one_with_the_longer_first(total: int, num_parts: int) -> None:
    parts = [list(range(total))[balanced(total, num_parts, index)] for index in range(num_parts)]
    assert list(itertools.chain(*parts)) == list(range(total))
    lengths = [len(part) for part in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


def test_ulysses_ranks_share_their_data() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4, ulysses_size=2)
    assert [mesh.get_data_rank_from_global_rank(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert mesh.data_world_size == 2
    assert mesh.get_slice(5, 0) == slice(0, 3)
    with pytest.raises(UsageError, match="ulysses_size=3: takes a divisor of dp x fsdp, which is 4"):
        DeviceMesh.from_sizes(dp_size=4, ulysses_size=3)


def test_who_shares_what() -> None:
    mesh = DeviceMesh.from_sizes(pp_size=2, dp_size=2, tp_size=2)
    assert mesh.get_tp_ranks(5) == [4, 5]
    assert mesh.get_tp_last_ranks() == [1, 3, 5, 7]
    assert mesh.get_pp_stage_ranks(0) == mesh.get_pp_first_ranks() == [0, 1, 2, 3]
    assert mesh.get_pp_last_ranks() == [4, 5, 6, 7]
    assert mesh.get_collect_ranks() == [4, 6]
    assert mesh.has_dim("tp")
    assert mesh.get_dim_size("tp") == 2
    with pytest.raises(UsageError, match="has the dimensions pp, dp, tp"):
        mesh.get_dim_size("cp")


def test_experts_are_no_dimension_unless_the_mesh_names_them_one() -> None:
    laid_over = DeviceMesh.from_sizes(dp_size=4, tp_size=2, ep_size=4)
    assert (laid_over.ep_rank, laid_over.ep_world_size) == (None, 4)
    named = DeviceMesh([[0, 1], [2, 3]], ("dp", "ep"))
    with taking_the_turn_of(Turn(3)):
        assert (named.dp_rank, named.ep_rank, named.data_rank) == (1, 1, 1)
    with pytest.raises(UsageError, match="ep_size x etp_size is 3, which does not divide the 4 ranks"):
        DeviceMesh.from_sizes(dp_size=4, ep_size=3)


def test_a_world_size_that_is_not_the_product_is_refused_with_the_product() -> None:
    with pytest.raises(UsageError, match=r"world_size=8, but dp=3 x tp=2 are 6 ranks"):
        DeviceMesh.from_sizes(world_size=8, dp_size=3, tp_size=2)


@pytest.mark.parametrize(
    ("mesh", "names", "told"),
    [
        ([[0, 1], [2]], ("dp", "tp"), "ragged"),
        ([0, 0], ("dp",), "not different"),
        ([0, 1], ("dp", "tp"), "1 dimension"),
        ([0, 1], ("data",), "takes different ones of"),
        (3, ("dp",), "no list of ranks"),
    ],
)
def test_a_mesh_that_cannot_be_meant_is_refused(mesh: object, names: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        DeviceMesh(mesh, names)


def test_a_mesh_of_an_array_is_the_mesh_of_a_list() -> None:
    mesh = DeviceMesh(np.arange(4).reshape(2, 2), ("dp", "tp"))
    assert mesh == DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    assert mesh.mesh.tolist() == [[0, 1], [2, 3]]


def test_groups_have_names_and_ranks_of_their_own() -> None:
    groups = settled_groups([
        DeviceGroup("model", 4, "cuda"), DeviceGroup("sampler", [4, 5], "GPU"), DeviceGroup("rewards", 2),
        DeviceGroup("reference", [0, 1], "cuda", shares_devices=True),
    ])  # fmt: skip
    assert [group.ranks for group in groups] == [[0, 1, 2, 3], [4, 5], [0, 1], [0, 1]]
    with pytest.raises(UsageError, match="two groups are named 'a'"):
        settled_groups([DeviceGroup("a", 1), DeviceGroup("a", 1)])
    with pytest.raises(UsageError, match="rank 1 of cuda is in the groups 'a' and 'b'"):
        settled_groups([DeviceGroup("a", [0, 1], "cuda"), DeviceGroup("b", [1, 2], "cuda")])
    with pytest.raises(UsageError, match="gpus_per_worker=3: does not divide its 4 ranks"):
        DeviceGroup("a", 4, "cuda", gpus_per_worker=3)
    with pytest.raises(UsageError, match="takes a list of different whole numbers"):
        DeviceGroup("a", [1, 1])
