"""The law of going on inside of an epoch: what was given and what is left are the epoch, whatever happened to it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout import DataError, UsageError
from turnout.data.arrow import ArrowShard


def rows_of(batches: Any) -> list[int]:
    return [int(x) for batch in batches for x in batch["x"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    for index, size in enumerate([300, 1, 1500, 700]):
        first = 10_000 * index
        pq.write_table(pa.table({"x": range(first, first + size)}), path / f"part-{index}.parquet", row_group_size=130)
    return path


@settings(max_examples=60, deadline=None)
@given(
    num_batches=st.integers(0, 12),
    batch_sizes=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    prefetch=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    buffer=st.none() | st.integers(1, 3000),
    seed=st.none() | st.integers(0, 3),
    epoch=st.none() | st.integers(0, 3),
    world_size=st.integers(1, 3),
    equal=st.booleans(),
)
def test_what_was_given_and_what_is_left_are_the_epoch_and_the_next_is_whole(
    folder: Path,
    num_batches: int,
    batch_sizes: tuple[int, int],
    prefetch: tuple[int, int],
    buffer: int | None,
    seed: int | None,
    epoch: int | None,
    world_size: int,
    equal: bool,
) -> None:
    shuffling: dict[str, Any] = {"local_shuffle_buffer_size": buffer, "local_shuffle_seed": seed}

    def shard() -> ArrowShard:
        made = ArrowShard("t", folder, rank=world_size - 1, world_size=world_size, equal=equal)
        if epoch is not None:
            made.set_epoch(epoch)
        return made

    stopped = shard()
    batches = stopped.iter_batches(batch_size=batch_sizes[0], prefetch_batches=prefetch[0], **shuffling)
    before = rows_of(itertools.islice(batches, num_batches))
    state = json.loads(json.dumps(stopped.state_dict()))
    rest_of_it = rows_of(batches)

    resumed = shard()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    if epoch is not None:
        resumed.set_epoch(epoch)
    rest = rows_of(resumed.iter_batches(batch_size=batch_sizes[1], prefetch_batches=prefetch[1], **shuffling))
    if before or buffer is None or seed is not None:
        assert rest == rest_of_it
    assert sorted(before + rest) == sorted(before + rest_of_it)
    assert len(before + rest) == resumed.count()
    following = [rows_of(each.iter_batches(batch_size=64, local_shuffle_seed=1)) for each in (stopped, resumed)]
    assert following[0] == following[1]
    assert len(following[0]) == resumed.count()


def state_after_two(shard: ArrowShard, **shuffling: Any) -> dict[str, Any]:
    rows_of(itertools.islice(shard.iter_batches(batch_size=50, **shuffling), 2))
    return shard.state_dict()


@pytest.mark.parametrize(
    ("begun", "asked"),
    [
        ({"local_shuffle_buffer_size": 20}, {}),
        ({}, {"local_shuffle_buffer_size": 20}),
        ({"local_shuffle_buffer_size": 20}, {"local_shuffle_buffer_size": 30}),
        (
            {"local_shuffle_buffer_size": 20, "local_shuffle_seed": 1},
            {"local_shuffle_buffer_size": 20, "local_shuffle_seed": 2},
        ),
        (
            {"local_shuffle_buffer_size": 20},
            {"local_shuffle_buffer_size": 20, "local_shuffle_seed": 2},
        ),
    ],
)
def test_an_epoch_is_not_gone_on_with_in_another_order(
    folder: Path, begun: dict[str, Any], asked: dict[str, Any]
) -> None:
    shard = ArrowShard("t", folder)
    shard.load_state_dict(state_after_two(ArrowShard("t", folder), **begun))
    with pytest.raises(UsageError, match=r"gone on with as it was begun.*local_shuffle_buffer_size"):
        next(shard.iter_batches(**asked))
    assert sorted(rows_of(shard.iter_batches(**begun))), "it goes on if it is asked for as it was begun"


def test_a_state_is_json_whatever_the_arguments_are_counted_with(folder: Path) -> None:
    shard = ArrowShard("t", folder)
    shard.set_epoch(np.int64(1))  # type: ignore[arg-type]  # that is the test
    arguments: Any = {"batch_size": np.int64(50), "prefetch_batches": np.int64(2)}
    arguments |= {"local_shuffle_buffer_size": np.int64(20), "local_shuffle_seed": np.int64(3)}
    rows_of(itertools.islice(shard.iter_batches(**arguments), 2))
    assert json.loads(json.dumps(shard.state_dict())) == shard.state_dict()


def test_rows_are_gone_on_with_too(folder: Path) -> None:
    stopped, resumed = ArrowShard("t", folder), ArrowShard("t", folder)
    rows = stopped.iter_rows()
    before = [row["x"] for row in itertools.islice(rows, 70)]
    resumed.load_state_dict(stopped.state_dict())
    after = [row["x"] for row in resumed.iter_rows()]
    assert before + after == rows_of(ArrowShard("t", folder).iter_batches())


def test_a_state_of_the_same_rows_in_other_pieces_or_columns_is_refused(tmp_path: Path) -> None:
    table = pa.table({"x": range(100)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    pq.write_table(table, tmp_path / "b.parquet", row_group_size=20)
    state = ArrowShard("t", tmp_path / "a.parquet").state_dict()
    for other in (tmp_path / "b.parquet", pa.table({"x": [1.0] * 100})):
        with pytest.raises(UsageError, match=r"datasets\['t'\]: the state is of other data"):
            ArrowShard("t", other).load_state_dict(state)
    with pytest.raises(UsageError, match=r"equal=True.*equal=False"):
        ArrowShard("t", tmp_path / "a.parquet", equal=False).load_state_dict(state)


def test_the_state_of_another_rank_that_drew_its_own_order_is_refused(folder: Path) -> None:
    first, second = (ArrowShard("t", folder, rank=rank, world_size=2) for rank in range(2))
    state = state_after_two(first, local_shuffle_buffer_size=20)
    with pytest.raises(UsageError, match=r"rank 0, which drew a seed.*rank 1.*local_shuffle_seed"):
        second.load_state_dict(state)
    second.load_state_dict(state_after_two(first, local_shuffle_buffer_size=20, local_shuffle_seed=1))
    rest = rows_of(second.iter_batches(local_shuffle_buffer_size=20, local_shuffle_seed=1))
    assert len(rest) == second.count() - 100


@pytest.mark.parametrize(
    "change",
    [{"rows": 10_000}, {"rows": -1}, {"epoch": "1"}, {"shuffle": 3}, {"shuffle": {"seed": 1}}, {"unknown": 1}],
)
def test_a_state_that_no_shard_has_made_is_refused(folder: Path, change: dict[str, Any]) -> None:
    shard = ArrowShard("t", folder)
    with pytest.raises(UsageError, match=r"load_state_dict\(\)"):
        shard.load_state_dict({**shard.state_dict(), **change})
    others: list[Any] = [None, {}, [], "state"]
    for state in others:
        with pytest.raises(UsageError, match=r"takes what state_dict\(\) of a shard has returned"):
            shard.load_state_dict(state)


def test_a_failure_in_the_middle_leaves_the_state_where_the_loop_was(tmp_path: Path) -> None:
    for index in range(2):
        pq.write_table(pa.table({"x": range(100)}), tmp_path / f"part-{index}.parquet")
    shard = ArrowShard("t", tmp_path)
    assert shard.count() == 200
    (tmp_path / "part-1.parquet").unlink()
    with pytest.raises(DataError):
        rows_of(shard.iter_batches(batch_size=40, prefetch_batches=5))
    assert shard.state_dict()["rows"] == 80
