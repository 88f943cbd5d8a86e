"""Arrow data in files: on S3, in folders of all kinds, and what is said when a file is not what it should be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.storage.helpers import S3
from turnout import DataError
from turnout.data.arrow import ArrowShard
from turnout.filesystem import resolve_uri

ROWS = 37  # of each file


def numbers(index: int) -> pa.Table:
    return pa.table({"x": range(ROWS * index, ROWS * (index + 1)), "y": [float(index)] * ROWS})


def rows_of(shard: ArrowShard, **arguments: Any) -> list[int]:
    return [int(x) for batch in shard.iter_batches(batch_size=8, **arguments) for x in batch["x"]]


@pytest.fixture
def ten_files(s3: S3, bucket: str) -> str:
    """The URI of a folder on S3."""
    uri = s3.uri(f"{bucket}/data")
    filesystem, path = resolve_uri(uri)
    for index in range(10):
        pq.write_table(numbers(index), f"{path}/part-{index}.parquet", filesystem=filesystem, row_group_size=10)
    return uri


def as_uri(uri: str) -> Any:
    return uri


def as_dataset(uri: str) -> Any:
    filesystem, path = resolve_uri(uri)
    return ds.dataset(path, filesystem=filesystem, format="parquet")


@pytest.mark.parametrize("given", [as_uri, as_dataset])
def test_ten_files_on_s3_are_dealt_to_two_ranks(ten_files: str, given: Callable[[str], Any]) -> None:
    shards = [ArrowShard("train", given(ten_files), rank=rank, world_size=2) for rank in range(2)]
    for epoch in range(2):
        shares = [rows_of(shard, prefetch_batches=4) for shard in shards]
        assert [len(share) for share in shares] == [5 * ROWS, 5 * ROWS]
        assert sorted(itertools.chain(*shares)) == list(range(10 * ROWS))
        for shard in shards:
            shard.set_epoch(epoch)


def test_one_file_on_s3_is_a_data_set_too(ten_files: str) -> None:
    path, _, query = ten_files.partition("?")
    assert rows_of(ArrowShard("train", f"{path}/part-3.parquet?{query}")) == list(range(3 * ROWS, 4 * ROWS))


def test_a_file_on_s3_that_vanishes_before_it_is_read_is_named(ten_files: str) -> None:
    shard = ArrowShard("train", ten_files)
    assert shard.count() == 10 * ROWS
    filesystem, path = resolve_uri(ten_files)
    filesystem.delete_file(f"{path}/part-7.parquet")
    with pytest.raises(DataError, match=r"datasets\['train'\]: \S*part-7\.parquet is no longer there"):
        rows_of(shard)


def test_nothing_on_s3_is_said_with_the_uri_and_without_its_query(s3: S3, bucket: str) -> None:
    with pytest.raises(DataError, match=rf"datasets\['train'\]: there is nothing at s3://{bucket}/none\?\*\*\*$"):
        ArrowShard("train", s3.uri(f"{bucket}/none"))


@pytest.mark.parametrize("uri", ["nope://bucket/data", "s3://"])
def test_a_uri_that_leads_nowhere_is_an_error_of_the_data_set(uri: str) -> None:
    with pytest.raises(DataError, match=rf"datasets\['train'\]: {uri}"):
        ArrowShard("train", uri)


def test_a_file_that_is_another_one_when_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(numbers(0), path)
    shard = ArrowShard("train", path)
    assert shard.count() == ROWS
    pq.write_table(numbers(1).slice(1), path)
    with pytest.raises(DataError, match=r"data\.parquet is another file than it was when its rows were counted"):
        rows_of(shard)


def test_a_file_of_another_format_that_has_lost_rows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("x\n1\n2\n")
    shard = ArrowShard("train", ds.dataset(path, format="csv"))
    assert shard.count() == 2
    path.write_text("x\n1\n")
    with pytest.raises(DataError, match=r"data\.csv has fewer rows than when they were counted"):
        rows_of(shard)


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"x": [1]}),
        pa.table({"x": [1], "y": ["text"]}),
        pa.table({"x": [1], "y": [1.0], "z": [1]}),
        pa.table({"y": [1.0], "x": [1]}),
    ],
    ids=["a column less", "another type", "a column more", "another order"],
)
def test_files_of_different_schemas_are_one_error_with_both(tmp_path: Path, other: pa.Table) -> None:
    pq.write_table(numbers(0), tmp_path / "part-0.parquet")
    pq.write_table(other, tmp_path / "part-1.parquet")
    with pytest.raises(DataError) as caught:
        ArrowShard("train", tmp_path).count()
    first, second = str(tmp_path / "part-0.parquet"), str(tmp_path / "part-1.parquet")
    schema = ", ".join(f"{each.name}: {each.type}" for each in other.schema)
    assert str(caught.value) == (
        f"datasets['train']: {second} has another schema than {first}:\n{schema}\nand not\nx: int64, y: double"
    )


def test_files_of_the_users_own_data_set_that_cannot_be_reconciled_are_one_error_with_both_schemas(
    tmp_path: Path,
) -> None:
    pq.write_table(numbers(0), tmp_path / "part-0.parquet")
    pq.write_table(pa.table({"x": ["text"]}), tmp_path / "part-1.parquet")
    with pytest.raises(
        DataError, match=r"(?s)part-1\.parquet cannot be read.*it has x: string\n.* x: int64, y: double"
    ):
        rows_of(ArrowShard("train", ds.dataset(tmp_path)))


def test_files_of_the_users_own_data_set_may_lack_columns(tmp_path: Path) -> None:
    pq.write_table(numbers(0), tmp_path / "part-0.parquet")
    pq.write_table(pa.table({"x": [ROWS]}), tmp_path / "part-1.parquet")
    assert rows_of(ArrowShard("train", ds.dataset(tmp_path))) == list(range(ROWS + 1))


def test_what_folders_are_named_for_is_a_column(tmp_path: Path) -> None:
    for year in (2024, 2025):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(numbers(year - 2024), tmp_path / f"year={year}" / "data.parquet")
    shard = ArrowShard("train", tmp_path)
    assert shard.schema().names == ["x", "y", "year"]
    frame = shard.to_pandas()
    assert frame["year"].tolist() == [2024] * ROWS + [2025] * ROWS
    assert rows_of(shard) == list(range(2 * ROWS))


def test_files_of_a_folder_that_are_hidden_are_none_of_the_data(tmp_path: Path) -> None:
    pq.write_table(numbers(0), tmp_path / "part-0.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-0.parquet.crc").write_bytes(b"crc")
    assert rows_of(ArrowShard("train", tmp_path)) == list(range(ROWS))


@pytest.mark.parametrize("name", ["README.md", "zebra.txt"])
def test_another_file_in_the_folder_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    pq.write_table(numbers(0), tmp_path / "part-0.parquet")
    (tmp_path / name).write_text("What this is.")
    with pytest.raises(DataError, match=rf"datasets\['train'\].*{name}.*pyarrow\.dataset\.Dataset to choose"):
        ArrowShard("train", tmp_path).count()


@pytest.mark.parametrize("path", ["", "nowhere", "nowhere/*.parquet"])
def test_a_path_with_nothing_there_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^datasets\['train'\]: there is nothing at \S+"):
        ArrowShard("train", path)


def test_a_folder_of_empty_folders_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with pytest.raises(DataError, match="no files"):
        ArrowShard("train", tmp_path)


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(table, tmp_path / "data.parquet")
    for data in (table, tmp_path / "data.parquet"):
        with pytest.raises(DataError, match=r"datasets\['train'\]"):
            ArrowShard("train", data)


def test_many_small_row_groups_and_a_filter_are_dealt_as_all_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "data.parquet", row_group_size=3)
    whole = ds.dataset(tmp_path)
    for data, first in ((tmp_path, 0), (whole, 0), (whole.filter(ds.field("x") >= 500), 500)):
        shards = [ArrowShard("train", data, rank=rank, world_size=3, equal=False) for rank in range(3)]
        assert sorted(itertools.chain(*map(rows_of, shards))) == list(range(first, 1000))
        for shard in shards:
            shard.set_epoch(1)
        assert sorted(itertools.chain(*map(rows_of, shards))) == list(range(first, 1000))
