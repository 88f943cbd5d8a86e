"""What an Arrow shard gives: every row as it was stored, in batches, formats, orders and places of every kind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnout import DataError, UsageError
from turnout.data.arrow import ArrowShard


def write(folder: Path, sizes: Sequence[int], group: int = 7) -> Path:
    folder.mkdir(exist_ok=True)
    first = 0
    for index, size in enumerate(sizes):
        numbers = np.arange(first, first + size)
        table = pa.table({"x": numbers, "half": numbers / 2, "text": pa.array(map(str, numbers), pa.string())})
        pq.write_table(table, folder / f"part-{index:02}.parquet", row_group_size=group)
        first += size
    return folder


def rows_of(shard: ArrowShard, batch_size: int | None = 8, **arguments: Any) -> list[int]:
    return [int(x) for batch in shard.iter_batches(batch_size=batch_size, **arguments) for x in batch["x"]]


@pytest.mark.parametrize("equal", [True, False])
def test_files_are_dealt_to_ranks_in_every_epoch(tmp_path: Path, equal: bool) -> None:
    path = write(tmp_path, [10, 0, 37, 5, 101])
    shards = [ArrowShard("train", path, rank=rank, world_size=4, equal=equal) for rank in range(4)]
    for epoch in range(3):
        shares = [rows_of(shard) for shard in shards]
        assert [len(share) for share in shares] == [shard.count() for shard in shards]
        everything = sorted(itertools.chain(*shares))
        assert everything == sorted(set(everything))
        assert len(everything) == (152 if equal else 153), epoch
    for shard in shards:
        shard.set_epoch(3)
    shuffled = [rows_of(shard) for shard in shards]
    assert len(set(itertools.chain(*shuffled))) == (152 if equal else 153)
    assert shuffled[0] != sorted(shuffled[0])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    chunks=st.lists(st.integers(0, 40), max_size=5),
    batch_size=st.integers(1, 30) | st.none(),
    drop_last=st.booleans(),
    buffer=st.none() | st.integers(1, 50),
    world_size=st.integers(1, 3),
)
def test_batches_have_their_size_and_lose_and_repeat_nothing(
    chunks: list[int], batch_size: int | None, drop_last: bool, buffer: int | None, world_size: int
) -> None:
    firsts = [0, *itertools.accumulate(chunks)]
    parts = [pa.table({"x": np.arange(first, first + size)}) for first, size in zip(firsts, chunks, strict=False)]
    table = pa.concat_tables(parts) if parts else pa.table({"x": pa.array([], pa.int64())})
    arguments: dict[str, Any] = {"drop_last": drop_last, "local_shuffle_buffer_size": buffer}
    given_rows = []
    for rank in range(world_size):
        shard = ArrowShard("t", table, rank=rank, world_size=world_size, equal=False)
        batches = [batch["x"].tolist() for batch in shard.iter_batches(batch_size=batch_size, **arguments)]
        if batch_size is not None:
            assert all(len(batch) == batch_size for batch in batches[:-1])
            assert not batches or len(batches[-1]) == batch_size or not drop_last
        given_rows += [x for batch in batches for x in batch]
    assert len(given_rows) == len(set(given_rows))
    if not (drop_last and batch_size):
        assert sorted(given_rows) == list(range(table.num_rows))


@pytest.mark.parametrize("buffer", [None, 20])
def test_a_state_goes_on_inside_of_the_epoch(tmp_path: Path, buffer: int | None) -> None:
    path = write(tmp_path, [40, 60, 33])
    arguments: dict[str, Any] = {"local_shuffle_buffer_size": buffer, "local_shuffle_seed": 1}

    def shard() -> ArrowShard:
        return ArrowShard("train", path, rank=1, world_size=2)

    undisturbed, stopped, resumed = shard(), shard(), shard()
    undisturbed.set_epoch(2)
    expected = rows_of(undisturbed, **arguments)
    stopped.set_epoch(2)
    batches = stopped.iter_batches(batch_size=8, **arguments)
    before = [int(x) for batch in itertools.islice(batches, 3) for x in batch["x"]]
    resumed.load_state_dict(stopped.state_dict())
    resumed.set_epoch(2)
    assert before + rows_of(resumed, **arguments) == expected
    undisturbed.set_epoch(3)
    resumed.set_epoch(3)
    assert rows_of(resumed, **arguments) == rows_of(undisturbed, **arguments)


def test_a_state_of_other_ranks_or_other_data_is_refused(tmp_path: Path) -> None:
    state = ArrowShard("train", write(tmp_path / "a", [10]), world_size=2).state_dict()
    with pytest.raises(UsageError, match=r"of 2 ranks and this run has 3"):
        ArrowShard("train", tmp_path / "a", world_size=3).load_state_dict(state)
    with pytest.raises(UsageError, match=r"datasets\['train'\].*10 rows, and this has 11"):
        ArrowShard("train", write(tmp_path / "b", [11]), world_size=2).load_state_dict(state)
    with pytest.raises(UsageError, match="state_dict"):
        ArrowShard("train", tmp_path / "a").load_state_dict({"epoch": 1})


def test_shuffling_repeats_itself_by_its_seed_and_differs_between_epochs(tmp_path: Path) -> None:
    path = write(tmp_path, [100])
    first, second = ArrowShard("train", path), ArrowShard("train", path)
    arguments: dict[str, Any] = {"local_shuffle_buffer_size": 30, "local_shuffle_seed": 5}
    epochs = [rows_of(first, **arguments) for _ in range(2)]
    assert [rows_of(second, **arguments) for _ in range(2)] == epochs
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100))


TABLE = pa.table(
    {
        "number": pa.array([1, 2, 3], pa.int32()),
        "missing": [1.5, None, 2.5],
        "flag": [True, False, True],
        "word": pa.array(["a", "b", "a"]).dictionary_encode(),
        "row": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6.0)), 2),
        "list": [[1, 2], [3], []],
        "nested": [{"a": 1}, {"a": 2}, None],
    }
)


def test_numpy_batches_hold_what_is_stored() -> None:
    (batch,) = ArrowShard("t", TABLE).iter_batches()
    assert batch["number"].dtype == np.int32
    assert batch["number"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(batch["missing"], [1.5, np.nan, 2.5])
    assert batch["flag"].tolist() == [True, False, True]
    assert batch["word"].tolist() == ["a", "b", "a"]
    assert batch["row"].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert [each.tolist() for each in batch["list"]] == [[1, 2], [3], []]
    assert batch["nested"].tolist() == [{"a": 1}, {"a": 2}, None]


def test_other_formats_are_pandas_and_arrow_and_rows_are_dicts() -> None:
    shard = ArrowShard("t", TABLE)
    (frame,) = shard.iter_batches(batch_format="pandas")
    assert isinstance(frame, pd.DataFrame)
    (table,) = shard.iter_batches(batch_format="pyarrow", batch_size=None)
    assert table.equals(TABLE)
    assert list(shard.iter_rows()) == TABLE.to_pylist()
    assert shard.schema() == TABLE.schema
    assert shard.to_pandas().equals(TABLE.to_pandas())
    assert shard.materialize().count() == 3
    with pytest.raises(UsageError, match="batch_format='csv'"):
        shard.iter_batches(batch_format="csv")


def test_torch_batches_are_tensors_by_column() -> None:
    table = TABLE.select(["number", "missing", "flag", "row"])
    (batch,) = ArrowShard("t", table).iter_torch_batches()
    assert batch["number"].dtype is torch.int32
    assert batch["missing"].isnan().tolist() == [False, True, False]
    assert batch["flag"].dtype is torch.bool
    assert batch["row"].shape == (3, 2)
    batch["number"][0] = 100
    assert table["number"][0].as_py() == 1, "a table of the user's is not written to"
    (halves,) = ArrowShard("t", table).iter_torch_batches(dtypes=torch.float16)
    assert {each.dtype for each in halves.values()} == {torch.float16}
    (mixed,) = ArrowShard("t", table).iter_torch_batches(dtypes={"number": torch.int64})
    assert (mixed["number"].dtype, mixed["row"].dtype) == (torch.int64, torch.float64)
    (own,) = ArrowShard("t", TABLE).iter_torch_batches(collate_fn=lambda batch: batch["word"].tolist())
    assert own == ["a", "b", "a"]


def test_what_cannot_be_a_tensor_names_the_column_and_the_remedy() -> None:
    with pytest.raises(DataError, match=r"'word'.*cannot be a tensor.*collate_fn"):
        next(ArrowShard("t", TABLE.select(["word"])).iter_torch_batches())
    with pytest.raises(DataError, match=r"'nope'.*'number'"):
        ArrowShard("t", TABLE).iter_torch_batches(dtypes={"nope": torch.int64})


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 0}, {"batch_size": 1.5}, {"prefetch_batches": -1}, {"local_shuffle_buffer_size": 0}],
)
def test_arguments_that_cannot_be_meant_are_refused_before_anything_is_read(arguments: dict[str, Any]) -> None:
    name = next(iter(arguments))
    for call in (ArrowShard("t", TABLE).iter_batches, ArrowShard("t", TABLE).iter_torch_batches):
        with pytest.raises(UsageError, match=name):
            call(**arguments)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_fewer_rows_than_ranks_are_dealt_too(rows: int, tmp_path: Path) -> None:
    path = write(tmp_path, [rows])
    for source in (path, pq.read_table(path / "part-00.parquet")):
        equal = [rows_of(ArrowShard("t", source, rank=rank, world_size=3)) for rank in range(3)]
        assert equal == [[], [], []]
        every = [rows_of(ArrowShard("t", source, rank=rank, world_size=3, equal=False)) for rank in range(3)]
        assert sorted(itertools.chain(*every)) == list(range(rows))
        assert ArrowShard("t", source).to_pandas().shape == (rows, 3)


def test_a_dataset_of_the_users_own_is_read_as_it_says(tmp_path: Path) -> None:
    path = write(tmp_path / "parquet", [30, 30])
    dataset = ds.dataset(path)
    filtered = dataset.filter(ds.field("x") < 30)
    shares = [rows_of(ArrowShard("t", filtered, rank=rank, world_size=2)) for rank in range(2)]
    assert [len(share) for share in shares] == [15, 15]
    assert sorted(itertools.chain(*shares)) == list(range(30))
    both = ds.dataset([dataset, ds.dataset(pa.table({"x": [60], "half": [30.0], "text": ["60"]}))])
    assert rows_of(ArrowShard("t", both)) == list(range(61))
    ds.write_dataset(dataset, tmp_path / "csv", format="csv")
    assert sorted(rows_of(ArrowShard("t", ds.dataset(tmp_path / "csv", format="csv")))) == list(range(60))
    ds.write_dataset(dataset, tmp_path / "hive", partitioning=["text"], partitioning_flavor="hive", format="parquet")
    hive = ArrowShard("t", ds.dataset(tmp_path / "hive", partitioning="hive"))
    assert sorted(rows_of(hive)) == list(range(60))


def test_a_schema_that_differs_names_the_file_and_both_schemas(tmp_path: Path) -> None:
    path = write(tmp_path, [3, 3])
    pq.write_table(pa.table({"x": [1.5], "half": [1.0]}), path / "part-02.parquet")
    with pytest.raises(DataError) as caught:
        rows_of(ArrowShard("train", path))
    text = str(caught.value)
    assert "datasets['train']" in text
    assert "part-02.parquet has another schema than" in text
    assert "x: double, half: double" in text
    assert "x: int64, half: double, text: string" in text


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, [100, 100], group=10)
    before_footers, after_footers = ArrowShard("train", path), ArrowShard("train", path)
    after_footers.count()
    (path / "part-01.parquet").unlink()
    for shard in (before_footers, after_footers):
        with pytest.raises(DataError, match=r"datasets\['train'\].*part-01\.parquet"):
            rows_of(shard)


@pytest.mark.parametrize("content", [None, b"", b"this is no parquet"])
def test_what_is_no_parquet_is_refused_with_its_path(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "data.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"datasets\['train'\].*data\.parquet"):
        rows_of(ArrowShard("train", path))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no files"):
        ArrowShard("train", tmp_path)
