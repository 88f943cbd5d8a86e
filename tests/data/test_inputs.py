"""Columns of every kind in every format, and arguments that can or cannot be meant."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from turnout import DataConfig, DataError, UsageError
from turnout.data.arrow import ArrowShard
from turnout.data.shards import check_datasets, shards_for

PAIRS = pa.list_(pa.float64(), 2)
COLUMNS: dict[str, pa.Array] = {
    "nothing": pa.nulls(3),
    "words": pa.array(["a", None, "a"]).dictionary_encode(),
    "codes": pa.array([7, 8, 7]).dictionary_encode(),
    "time stamps": pa.array([datetime.datetime(2020, 1, 1)] * 3),
    "days": pa.array([datetime.date(2020, 1, 1)] * 3),
    "times": pa.array([datetime.time(1)] * 3),
    "decimals": pa.array([decimal.Decimal("1.5")] * 3),
    "bytes": pa.array([b"a", b"b", b"c"]),
    "lists": pa.array([[1, 2], [3, 4], [5, 6]]),
    "ragged": pa.array([[1], [2, 3], None]),
    "lists of lists": pa.array([[[1, 2]], [[3, 4]], [[5, 6]]]),
    "lists of text": pa.array([["a"], ["b"], ["c"]]),
    "pairs": pa.array([[1.0, 2.0], [3.0, None], [5.0, 6.0]], PAIRS),
    "missing pairs": pa.array([[1.0, 2.0], None, [5.0, 6.0]], PAIRS),
    "pairs of pairs": pa.array([[[1.0, 2.0], [3.0, 4.0]]] * 3, pa.list_(PAIRS, 2)),
    "structs": pa.array([{"a": 1}, {"a": 2}, None]),
    "maps": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
    "flags": pa.array([True, False, True]),
    "missing flags": pa.array([True, None, True]),
    "missing numbers": pa.array([1, None, 3]),
    "small": pa.array([1, 2, 3], pa.uint8()),
    "unsigned": pa.array([1, 2, 3], pa.uint32()),
    "halves": pa.array(np.array([1, 2, 3], np.float16)),
    "large text": pa.array(["a", "b", "c"], pa.large_string()),
}
TENSORS = {
    "codes": [7, 8, 7],
    "lists": [[1, 2], [3, 4], [5, 6]],
    "lists of lists": [[[1, 2]], [[3, 4]], [[5, 6]]],
    "pairs": [[1.0, 2.0], [3.0, None], [5.0, 6.0]],
    "pairs of pairs": [[[1.0, 2.0], [3.0, 4.0]]] * 3,
    "flags": [True, False, True],
    "missing numbers": [1.0, None, 3.0],
    "small": [1, 2, 3],
    "unsigned": [1, 2, 3],
    "halves": [1.0, 2.0, 3.0],
}


def plain(value: Any) -> Any:
    """Arrays as lists, and what is not a number as missing."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and np.isnan(value) else value


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("batch_size", [2, 3])
def test_columns_of_every_kind_are_given_as_they_are_stored(column: str, batch_size: int) -> None:
    table = pa.table({"x": COLUMNS[column]})
    shard = ArrowShard("t", table)
    batches = list(shard.iter_batches(batch_size=batch_size))
    values = [plain(value) for batch in batches for value in plain(batch["x"])]
    kind = table.schema.field("x").type
    if not pa.types.is_temporal(kind):
        assert values == [plain(value) for value in table["x"].to_pylist()]
    elif pa.types.is_timestamp(kind):
        assert all(batch["x"].dtype == np.dtype("datetime64[us]") for batch in batches)
    assert pa.concat_tables(shard.iter_batches(batch_size=batch_size, batch_format="pyarrow")).equals(table)
    frames = list(shard.iter_batches(batch_size=batch_size, batch_format="pandas"))
    assert sum(map(len, frames)) == 3
    assert list(shard.iter_rows()) == table.to_pylist()


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_column_is_a_tensor_or_an_error_with_its_name_and_the_remedy(column: str, batch_size: int) -> None:
    table = pa.table({column: COLUMNS[column]})
    batches = ArrowShard("t", table).iter_torch_batches(batch_size=batch_size)
    if column in TENSORS:
        assert [plain(value) for batch in batches for value in batch[column]] == TENSORS[column]
    elif batch_size == 3:
        with pytest.raises(
            DataError, match=rf"datasets\['t'\]: the column '{column}', of .* cannot be a tensor.*collate_fn"
        ):
            next(batches)


def test_parquet_gives_the_same_as_the_table_that_it_was_made_of(tmp_path: Any) -> None:
    table = pa.table(COLUMNS)
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=2)
    shard = ArrowShard("t", tmp_path)
    assert list(shard.iter_rows()) == table.to_pylist()
    assert next(shard.iter_batches(batch_size=3)).keys() == COLUMNS.keys()


NUMBERS = pa.table({"x": [1, 2, 3], "y": [1.0, 2.0, 3.0]})
BAD_OF_ALL: list[dict[str, Any]] = [
    *({"batch_size": value} for value in (0, -1, True, 2.0, "8")),
    *({"prefetch_batches": value} for value in (-1, True, None, 1.0)),
    *({"local_shuffle_buffer_size": value} for value in (0, True, "8")),
    *({"local_shuffle_buffer_size": 2, "local_shuffle_seed": value} for value in ("a", 1.5, True, -3)),
]
BAD_OF_TORCH: list[dict[str, Any]] = [
    *({"device": value} for value in ("nope", 3, None, "")),
    *({"dtypes": value} for value in ("float32", np.float32, {"x": "float32"}, [torch.float32])),
    {"collate_fn": 3},
    *({"collate_fn": len, **other} for other in ({"dtypes": torch.int8}, {"device": "cpu"}, {"pin_memory": True})),
]


@pytest.mark.parametrize("arguments", BAD_OF_ALL, ids=str)
def test_arguments_that_cannot_be_meant_are_refused_at_the_call(arguments: dict[str, Any]) -> None:
    shard = ArrowShard("t", NUMBERS)
    for call in (shard.iter_batches, shard.iter_torch_batches):
        with pytest.raises(UsageError, match=list(arguments)[-1]):
            call(**arguments)


@pytest.mark.parametrize("arguments", BAD_OF_TORCH, ids=str)
def test_arguments_of_tensors_that_cannot_be_meant_are_refused_at_the_call(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=list(arguments)[-1]):
        ArrowShard("t", NUMBERS).iter_torch_batches(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_refused_at_the_call() -> None:
    with pytest.raises(UsageError, match="there is no CUDA here"):
        ArrowShard("t", NUMBERS).iter_torch_batches(device="cuda:0")


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ({"batch_size": None}, [3]),
        ({"batch_size": None, "drop_last": True}, [3]),
        ({"batch_size": np.int64(2)}, [2, 1]),
        ({"batch_size": 2, "drop_last": True}, [2]),
        ({"batch_size": 10**30}, [3]),
        ({"batch_size": 10**30, "drop_last": True}, []),
        ({"batch_size": 2, "prefetch_batches": 10**30}, [2, 1]),
        ({"batch_size": 3, "local_shuffle_buffer_size": 1}, [3]),
        ({"batch_size": 2, "local_shuffle_buffer_size": 10**9}, [2, 1]),
    ],
    ids=str,
)
def test_batches_have_the_sizes_that_are_asked_for(arguments: dict[str, Any], sizes: list[int]) -> None:
    shard = ArrowShard("t", NUMBERS)
    assert [len(batch["x"]) for batch in shard.iter_batches(**arguments)] == sizes
    assert [len(batch["x"]) for batch in shard.iter_torch_batches(**arguments)] == sizes


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        ({}, [torch.int64, torch.float64]),
        ({"dtypes": torch.float32}, [torch.float32, torch.float32]),
        ({"dtypes": {"x": torch.int8}}, [torch.int8, torch.float64]),
        ({"dtypes": {"x": None}, "device": "cpu"}, [torch.int64, torch.float64]),
        ({"dtypes": {"y": torch.float16}, "device": torch.device("meta")}, [torch.int64, torch.float16]),
    ],
    ids=str,
)
def test_tensors_have_the_types_and_the_place_that_are_asked_for(arguments: dict[str, Any], kinds: list[Any]) -> None:
    (batch,) = ArrowShard("t", NUMBERS).iter_torch_batches(**arguments)
    assert [each.dtype for each in batch.values()] == kinds
    assert {each.device for each in batch.values()} == {torch.device(arguments.get("device", "cpu"))}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_pinning_without_cuda_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert len(list(ArrowShard("t", NUMBERS).iter_torch_batches(batch_size=1, pin_memory=True))) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "iter_torch_batches(): pin_memory has no effect, as there is no CUDA here"
    ]


def test_a_dtype_for_a_column_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(DataError, match=r"'z', and datasets\['t'\] has 'x', 'y'"):
        ArrowShard("t", NUMBERS).iter_torch_batches(dtypes={"z": torch.int8})


def test_what_the_collate_function_raises_is_the_users_own() -> None:
    with pytest.raises(KeyError, match="z"):
        next(ArrowShard("t", NUMBERS).iter_torch_batches(collate_fn=lambda batch: batch["z"]))


@pytest.mark.parametrize("of", ["file", "table", "no columns"])
def test_no_rows_are_no_batches(of: str, tmp_path: Any) -> None:
    data: Any = {"table": NUMBERS.slice(0, 0), "no columns": pa.table({})}.get(of, tmp_path)
    pq.write_table(NUMBERS.slice(0, 0), tmp_path / "data.parquet")
    shard = ArrowShard("t", data, world_size=2)
    calls: list[Callable[[], Any]] = [shard.iter_batches, shard.iter_torch_batches, shard.iter_rows]
    for call in calls:
        assert list(call()) == []
    assert list(shard.iter_batches(drop_last=True, local_shuffle_buffer_size=5)) == []
    assert shard.count() == shard.materialize().count() == len(shard.to_pandas()) == 0


def test_options_of_ray_data_are_refused_where_no_data_set_is_rays() -> None:
    config = DataConfig(execution_options={"resource_limits": 1})
    for call in (
        lambda: check_datasets({"train": NUMBERS}, config, world_size=2),
        lambda: shards_for({"train": NUMBERS}, config),
    ):
        with pytest.raises(UsageError, match=r"execution_options.*Ray Data's.*datasets\['train'\].*prefetch_batches"):
            call()
    assert shards_for({}, config) == {}
    assert shards_for({"train": lambda: NUMBERS}, config)["train"].count() == 3
