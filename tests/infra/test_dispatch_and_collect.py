"""How rows are dealt and come back: laws over meshes and numbers of rows, and the cases that are easily wrong."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.errors import UsageError
from turnout.infra import DeviceMesh
from turnout.infra.collect import Collecting, Reply, collected, passed
from turnout.infra.dispatch import DispatchPolicy, Part, dispatched
from turnout.infra.rows import num_rows, size_of

Pair = namedtuple("Pair", "ids scores")  # noqa: PYI024  # as users write them

MESHES = [
    DeviceMesh.from_sizes(dp_size=4),
    DeviceMesh.from_sizes(dp_size=2, fsdp_size=2),
    DeviceMesh.from_sizes(dp_size=2, tp_size=2),
    DeviceMesh.from_sizes(dp_size=2, pp_size=2, tp_size=2),
    DeviceMesh.from_sizes(fsdp_size=3, cp_size=2),
    DeviceMesh.from_sizes(dp_size=4, ulysses_size=2),
    DeviceMesh([[0, 1], [2, 3]], ("dp", "ep")),
    DeviceMesh([[3, 1], [0, 2]], ("dp", "tp")),
]
meshes = st.sampled_from(MESHES)
ways = st.sampled_from(["slice", "slice_dp"])
kinds: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "array": lambda rows: np.array(list(rows), dtype=np.int64),
    "tensor": lambda rows: torch.tensor(list(rows), dtype=torch.int64),
    "table": lambda rows: pa.table({"x": pa.array(list(rows), pa.int64())}),
    "dict": lambda rows: {"x": list(rows), "y": {"z": np.array(list(rows), dtype=np.int64)}, "name": "whole"},
    "namedtuple": lambda rows: Pair(list(rows), np.array(list(rows), dtype=np.int64)),
}


def plain(value: Any) -> Any:
    """A value without the kinds of its rows, so that values can be compared."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, pa.Table):
        return value.column("x").to_pylist()
    return [list(map(int, each)) for each in value] if isinstance(value, Pair) else [int(each) for each in value]


def dealt(mesh: DeviceMesh, way: str, value: Any, uneven: str = "error") -> list[Part]:
    policy = DispatchPolicy.of(way, uneven)
    return dispatched(policy, (value,), {}, ranks=range(mesh.world_size), mesh=mesh, names=["batch"])


def back(mesh: DeviceMesh, way: str, parts: list[Part], collect: Any, results: list[Any]) -> Any:
    collecting = Collecting(collect, tuple(range(mesh.world_size)), mesh, way == "slice_dp")
    replies = [
        Reply(result, part.num_items, part.num_copies, num_rows(result))
        for part, result in zip(parts, results, strict=True)
    ]
    return collected(collecting, replies)


@settings(deadline=None, max_examples=60)
@given(meshes, ways, st.integers(1, 20), st.sampled_from(sorted(kinds)), st.sampled_from(["pad", "allow"]))
def test_every_row_is_dealt_once_and_comes_back_in_the_order_of_the_input(
    mesh: DeviceMesh, way: str, num: int, kind: str, uneven: str
) -> None:
    value = kinds[kind](range(num))
    parts = dealt(mesh, way, value, uneven)
    returned = back(mesh, way, parts, "flatten", [part.args[0] for part in parts])
    if kind == "dict":
        assert {part.args[0]["name"] for part in parts} == {"whole"}
        returned, value = ({key: each[key] for key in "xy"} for each in (returned, value))
        returned["y"], value["y"] = list(returned["y"]["z"]), list(value["y"]["z"])
    assert plain(returned) == plain(value)
    assert type(returned) is type(value)


@settings(deadline=None, max_examples=60)
@given(meshes, st.integers(1, 20))
def test_replicas_agree_and_data_ranks_share_nothing(mesh: DeviceMesh, num: int) -> None:
    parts = dealt(mesh, "slice_dp", list(range(num)), "allow")
    by_data_rank: dict[int, list[int]] = {}
    for rank, part in enumerate(parts):
        data_rank = mesh.get_data_rank_from_global_rank(rank)
        assert data_rank is not None
        assert by_data_rank.setdefault(data_rank, part.args[0]) == part.args[0]
        assert part.num_items == len(part.args[0])
    assert sorted(row for rows in by_data_rank.values() for row in rows) == list(range(num))


@settings(deadline=None, max_examples=60)
@given(meshes, ways, st.lists(st.integers(-9, 9), min_size=1, max_size=20), st.sampled_from(["allow", "error"]))
def test_the_mean_is_that_of_all_rows_however_they_are_dealt(
    mesh: DeviceMesh, way: str, rows: list[int], uneven: str
) -> None:
    try:
        parts = dealt(mesh, way, rows, uneven)
    except UsageError:
        assert uneven == "error"
        return
    means = [sum(part.args[0]) / len(part.args[0]) if part.args[0] else float("nan") for part in parts]
    true = sum(rows) / len(rows)
    assert back(mesh, way, parts, "mean", means) == pytest.approx(true)
    assert back(mesh, way, parts, "mean", [{"loss": mean} for mean in means])["loss"] == pytest.approx(true)
    sums = [sum(part.args[0]) for part in parts]
    assert back(mesh, way, parts, "sum", sums) == sum(rows)


@settings(deadline=None, max_examples=60)
@given(meshes, meshes, ways, ways, st.integers(1, 20), st.sampled_from(["flatten", "none", "first", "mean", "sum"]))
def test_passing_a_result_on_is_passing_its_value_and_fetches_only_what_is_needed(
    source: DeviceMesh, target: DeviceMesh, way: str, then: str, num: int, collect: str
) -> None:
    parts = dealt(source, way, np.arange(num), "allow")
    results = [part.args[0] for part in parts]
    if collect in ("mean", "sum"):
        results = [np.arange(3) for _ in results]
    collecting = Collecting(collect, tuple(range(source.world_size)), source, way == "slice_dp")
    replies = [
        Reply(None, part.num_items, part.num_copies, num_rows(result), place)
        for place, (part, result) in enumerate(zip(parts, results, strict=True))
    ]
    value = back(source, way, parts, collect, results)
    expected = dispatched(DispatchPolicy.of(then, "allow"), (value,), {}, ranks=range(target.world_size), mesh=target)
    blank = dispatched(DispatchPolicy.of(then, "allow"), (1,), {}, ranks=range(target.world_size), mesh=target)
    for part, unfilled in zip(expected, blank, strict=True):
        brought: set[int] = set()

        def fetched(reply: Reply, brought: set[int] = brought) -> Reply:
            brought.add(reply.stored)
            return reply._replace(value=results[reply.stored], stored=None)

        got, cut, total = passed(collecting, replies, fetched, unfilled.cutting, "batch")
        assert [np.asarray(each).tolist() for each in got] == [np.asarray(each).tolist() for each in part.args[0]]
        assert cut is not None
        assert cut.stop - cut.start == part.num_items
        assert total == len(value)
        if collect == "flatten" and len(got):
            rows = set(got.tolist())
            assert brought <= {place for place, result in enumerate(results) if rows & set(result.tolist())}


def test_slice_of_five_over_four_and_what_has_no_rows_goes_whole() -> None:
    mesh = MESHES[0]
    parts = dispatched(
        DispatchPolicy(), ([1, 2, 3, 4, 5], "text", 7), {"scale": 0.5}, ranks=range(4), mesh=mesh, names=["batch"]
    )
    assert [part.args[0] for part in parts] == [[1, 2], [3], [4], [5]]
    assert {(part.args[1], part.args[2], part.kwargs["scale"]) for part in parts} == {("text", 7, 0.5)}


def test_two_items_over_four_workers_are_refused_and_never_a_silent_empty_part() -> None:
    for value in ([1, 2], (1, 2), np.arange(2), torch.arange(2), {"x": [1, 2]}, pa.table({"x": [1, 2]})):
        with pytest.raises(UsageError, match=r"2 row\(s\) for 4 workers"):
            dealt(MESHES[0], "slice", value)
    with pytest.raises(UsageError, match=r"1 row\(s\) for 2 data ranks"):
        dealt(MESHES[2], "slice_dp", [1])


def test_slice_dp_of_four_rows_over_dp_and_tp() -> None:
    rows = [part.args[0] for part in dealt(MESHES[2], "slice_dp", list("abcd"))]
    assert rows == [["a", "b"], ["a", "b"], ["c", "d"], ["c", "d"]]
    rows = [part.args[0] for part in dealt(MESHES[3], "slice_dp", list("abcd"))]
    assert rows == [["a", "b"]] * 2 + [["c", "d"]] * 2 + [["a", "b"]] * 2 + [["c", "d"]] * 2
    rows = [part.args[0] for part in dealt(MESHES[6], "slice_dp", list("abcd"))]
    assert rows == [["a", "b"], ["a", "b"], ["c", "d"], ["c", "d"]]


def test_uneven_in_its_four_forms() -> None:
    mesh, five = MESHES[0], [1, 2, 3, 4, 5]
    assert [part.num_items for part in dealt(mesh, "slice", five, "error")] == [2, 1, 1, 1]
    with pytest.raises(UsageError, match=r"5 row\(s\), which 4 workers cannot share evenly"):
        dealt(mesh, "slice", five, "strict")
    assert [part.num_items for part in dealt(mesh, "slice", [*five, 6, 7, 8], "strict")] == [2, 2, 2, 2]
    padded = dealt(mesh, "slice", five, "pad")
    assert [part.args[0] for part in padded] == [[1, 2], [3, 3], [4, 4], [5, 5]]
    assert [(part.num_items, part.num_copies) for part in padded] == [(2, 0), (1, 1), (1, 1), (1, 1)]
    assert [part.args[0] for part in dealt(mesh, "slice", [1], "pad")] == [[1]] * 4
    assert [part.args[0] for part in dealt(mesh, "slice", [1, 2], "allow")] == [[1], [2], [], []]
    with pytest.raises(UsageError, match="has no row"):
        dealt(mesh, "slice", [], "pad")


def test_padding_a_batch_leaves_the_caller_s_as_it_is() -> None:
    batch = [1, 2, 3, 4, 5]
    parts = dealt(MESHES[0], "slice", batch, "pad")
    parts[0].args[0].append(9)
    assert batch == [1, 2, 3, 4, 5]


def test_rows_of_copies_that_cannot_be_told_apart_are_refused() -> None:
    parts = dealt(MESHES[0], "slice", [1, 2, 3, 4, 5], "pad")
    with pytest.raises(UsageError, match="not known which are of copies"):
        back(MESHES[0], "slice", parts, "flatten", [[1, 2, 3]] * 4)


def test_arguments_of_different_length_are_an_error_that_names_both() -> None:
    with pytest.raises(UsageError, match=r"batch\['x'\] \(4 rows\) and targets \(5 rows\)"):
        dispatched(
            DispatchPolicy(), ({"x": [1, 2, 3, 4]}, [1, 2, 3, 4, 5]), {}, ranks=range(4), mesh=MESHES[0],
            names=["batch", "targets"],
        )  # fmt: skip


def test_only_named_arguments_are_cut_where_some_are() -> None:
    policy = DispatchPolicy.of({"batch": "slice_dp", "modules": "all"}, "error")
    parts = dispatched(
        policy, ([1, 2, 3, 4],), {"modules": ["q", "v"], "more": [1]}, ranks=range(4), mesh=MESHES[2], names=["batch"]
    )
    assert [part.args[0] for part in parts] == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert all(part.kwargs == {"modules": ["q", "v"], "more": [1]} for part in parts)


def test_a_callable_is_called_once_a_worker_and_decides_what_it_gets() -> None:
    calls = []

    def by_rank(world_size: int, rank: int, args: Any, kwargs: Any, device_mesh: DeviceMesh) -> Any:
        calls.append((world_size, rank, device_mesh))
        return (args[0] + rank,), {"more": kwargs["more"] * rank}

    parts = dispatched(DispatchPolicy.of(by_rank, "error"), (10,), {"more": 2}, ranks=range(4), mesh=MESHES[0])
    assert [(part.args, part.kwargs) for part in parts] == [((10 + rank,), {"more": 2 * rank}) for rank in range(4)]
    assert calls == [(4, rank, MESHES[0]) for rank in range(4)]
    with pytest.raises(UsageError, match=r"it returned 3 and not \(args, kwargs\)"):
        dispatched(DispatchPolicy.of(lambda *_: 3, "error"), (), {}, ranks=range(1), mesh=MESHES[0])


def collected_of(how: Any, results: list[Any], mesh: DeviceMesh = MESHES[0], weights: Any = None) -> Any:
    weights = weights or [None] * len(results)
    replies = [Reply(result, weight) for result, weight in zip(results, weights, strict=True)]
    return collected(Collecting(how, tuple(range(len(results))), mesh, False), replies)


def test_none_sum_first_flatten_last_pp_and_a_callable() -> None:
    mesh = DeviceMesh.from_sizes(pp_size=2, tp_size=2)
    results = [[1], [2], [3], [4]]
    assert collected_of("none", results) == results
    assert collected_of("none", [5], DeviceMesh.from_sizes(dp_size=1)) == [5]
    assert collected_of("sum", [1, 2, 3, 4]) == 10
    assert collected_of("first", results) == [1]
    assert collected_of("flatten", results) == [1, 2, 3, 4]
    assert collected_of("last_pp", results, mesh) == [[3], [4]]
    assert collected_of("last_pp_first", results, mesh) == [3]
    assert collected_of(lambda each, device_mesh: (each[-1], device_mesh), results, mesh) == ([4], mesh)


def test_vectors_and_tensors_reduce_element_by_element_and_keep_their_type() -> None:
    assert collected_of("sum", [[1, 2], [3, 4]]) == [4, 6]
    assert collected_of("mean", [[1.0, 2.0], [3.0, 4.0]], weights=[3, 1]) == [1.5, 2.5]
    for dtype in (np.float32, np.float64):
        mean = collected_of("mean", [np.array([1, 2], dtype), np.array([3, 4], dtype)])
        assert mean.dtype == dtype
        assert mean.tolist() == [2, 3]
    tensor = collected_of("mean", [torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)])
    assert tensor.dtype == torch.bfloat16
    assert tensor.tolist() == [0.5, 0.5]
    assert collected_of("flatten", [torch.tensor([1]), torch.tensor([2])]).dtype == torch.int64
    assert collected_of("sum", [(1, {"a": 2}), (3, {"a": 4})]) == (4, {"a": 6})
    assert collected_of("mean", [torch.tensor(1.0), torch.tensor(3.0)]) == torch.tensor(2.0)
    assert isinstance(collected_of("mean", [np.float32(1), np.float32(3)]), np.float32)


def test_a_value_that_is_no_number_does_not_crash() -> None:
    results = [{"loss": 1.0, "name": "a", "none": None}, {"loss": 3.0, "name": "b", "none": None}]
    assert collected_of("mean", results) == {"loss": 2.0, "name": ["a", "b"], "none": [None, None]}
    assert collected_of("mean", [None, {"loss": 3.0}]) == {"loss": 3.0}
    assert collected_of("sum", [None, None]) is None
    assert collected_of("mean", [[1, 2], [3]]) == [[1, 2], [3]]


def test_sizes_are_about_right_and_end_where_a_limit_is_passed() -> None:
    class Node:
        def __init__(self) -> None:
            self.own, self.weights = self, np.zeros(1000)

    limit = 1 << 20
    frame = pd.DataFrame({"x": np.zeros(1000)})
    for value in (
        np.zeros(1000),
        torch.zeros(1000, dtype=torch.float64),
        [0.0] * 250,
        Node(),
        frame,
        {"x": "a" * 8000},
    ):
        assert 8000 <= size_of(value, limit) <= 8000 * 20, value
    assert limit < size_of([0] * 10**6, limit) < limit * 1.1


def test_rows_of_different_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match=r'collect="flatten".*list, ndarray'):
        collected_of("flatten", [[1], np.array([2])])


def test_data_sets_are_cut_by_their_own_means() -> None:
    class Squares(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            if index >= 5:
                raise IndexError
            return index * index

    parts = dealt(MESHES[0], "slice", Squares())
    assert [[part.args[0][place] for place in range(len(part.args[0]))] for part in parts] == [[0, 1], [4], [9], [16]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"dispatch": "rows"}, "takes one of 'all', 'slice', 'slice_dp', a dict"),
        ({"dispatch": {"x": "rows"}}, "takes one of 'all', 'slice', 'slice_dp'"),
        ({"dispatch": {"x": "slice", "y": "slice_dp"}}, 'either by "slice" or by "slice_dp"'),
        ({"dispatch": {"y": "slice"}}, "dispatch names 'y', and the method takes x"),
        ({"collect": "max"}, "takes one of 'none', 'flatten'"),
        ({"execute": "some"}, "takes one of 'all', 'first', 'peer'"),
        ({"uneven": "drop"}, "takes one of 'error', 'strict', 'pad', 'allow'"),
        ({"timeout": 0}, "takes a number of seconds above 0"),
    ],
)
def test_strategies_are_checked_when_the_decorator_runs(arguments: dict[str, Any], told: str) -> None:
    import turnout.infra as infra

    def method(self: Any, x: list[int]) -> None: ...

    decorator: Any = infra.remote_function  # Any: the checker sees it, too
    with pytest.raises(UsageError, match=told):
        decorator(**arguments)(method)
