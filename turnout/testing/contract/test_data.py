"""What `get_dataset_shard` gives, on every track."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import turnout
import turnout.collective
from turnout import DataConfig, DataError, FailureConfig, RunConfig, UsageError
from turnout.testing.contract.helpers import is_first_time, report_folder, text_in
from turnout.testing.tracks import Track

WHOLE = DataConfig(datasets_to_split=[])


def test_an_object_that_is_not_cut_is_handed_to_every_rank_whole(track: Track) -> None:
    result = track.fit(
        lambda: turnout.get_dataset_shard("train"), datasets={"train": {"x": [1, 2]}}, dataset_config=WHOLE
    )
    assert result.return_values == track.on_every_rank({"x": [1, 2]})


def test_an_object_that_cannot_be_cut_is_refused_before_several_ranks_start(group_track: Track, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"datasets\['train'\].*DataConfig\.datasets_to_split"):
        group_track.fit((tmp_path / "entered").touch, datasets={"train": [1, 2, 3]})
    assert not (tmp_path / "entered").exists()


def test_what_a_callable_makes_is_refused_on_several_ranks_if_it_cannot_be_cut(
    group_track: Track, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"datasets\['train'\], a list.*DataConfig\.datasets_to_split"):
        group_track.fit((tmp_path / "entered").touch, datasets={"train": lambda: [1, 2, 3]})
    assert not (tmp_path / "entered").exists()


def test_a_callable_is_called_for_every_attempt(retrying_track: Track, tmp_path: Path) -> None:
    def train() -> int:
        shard = turnout.get_dataset_shard("train")
        total: int = sum(shard)
        shard.clear()
        if is_first_time(tmp_path):
            raise RuntimeError("once")
        return total

    run_config = RunConfig(failure_config=FailureConfig(max_failures=1))
    result = retrying_track.fit(
        train, datasets={"train": lambda: [1, 2, 3]}, dataset_config=WHOLE, run_config=run_config
    )
    assert result.return_values == retrying_track.on_every_rank(6)


def test_the_only_dataset_needs_no_name(track: Track) -> None:
    result = track.fit(turnout.get_dataset_shard, datasets={"train": [1]}, dataset_config=WHOLE)
    assert result.return_values == track.on_every_rank([1])


def test_with_several_datasets_a_name_is_asked_for(track: Track) -> None:
    with pytest.raises(UsageError, match=r"several datasets.*'train', 'test'"):
        track.fit(lambda: turnout.get_dataset_shard(), datasets={"train": [1], "test": [2]}, dataset_config=WHOLE)


def test_an_unknown_dataset_names_the_known_ones(track: Track) -> None:
    with pytest.raises(UsageError, match=r"'nope'.*'train'"):
        track.fit(lambda: turnout.get_dataset_shard("nope"), datasets={"train": [1]}, dataset_config=WHOLE)


def test_without_datasets_the_error_says_how_to_give_one(track: Track) -> None:
    with pytest.raises(UsageError, match="datasets="):
        track.fit(lambda: turnout.get_dataset_shard("train"))


def test_a_callable_that_raises_names_the_dataset(track: Track) -> None:
    def broken() -> None:
        raise OSError("no such table")

    with pytest.raises(DataError, match=r"datasets\['train'\].*no such table"):
        track.fit(lambda: None, datasets={"train": broken})


def numbers_in(folder: Path) -> Path:
    for index in range(3):
        first = 10 * index
        table = pa.table({"x": list(range(first, first + 10))})
        pq.write_table(table, folder / f"part-{index}.parquet", row_group_size=4)
    return folder


def test_arrow_data_of_every_kind_is_dealt_to_the_ranks(track: Track, tmp_path: Path) -> None:
    path = numbers_in(tmp_path)
    table = ds.dataset(path).to_table()
    sources = {"path": str(path), "dataset": ds.dataset(path), "table": table, "made": lambda: path}

    def train() -> dict[str, list[int]]:
        return {
            name: [int(x) for batch in turnout.get_dataset_shard(name).iter_batches(batch_size=4) for x in batch["x"]]
            for name in ("path", "dataset", "table", "made")
        }

    shares = track.fit(train, datasets=sources).return_values
    assert shares is not None
    size = 30 // track.world_size
    for name in sources:
        assert [share[name] for share in shares] == [
            list(range(rank * size, (rank + 1) * size)) for rank in range(track.world_size)
        ]


def test_arrow_data_that_is_not_split_is_whole_on_each_rank(track: Track, tmp_path: Path) -> None:
    def train() -> int:
        return int(turnout.get_dataset_shard("train").count())

    result = track.fit(train, datasets={"train": numbers_in(tmp_path)}, dataset_config=WHOLE)
    assert result.return_values == track.on_every_rank(30)


def test_without_equal_shares_every_row_is_on_one_rank(group_track: Track, tmp_path: Path) -> None:
    table = pa.table({"x": list(range(7))})
    config = DataConfig(equal=False)

    def train() -> int:
        return int(turnout.collective.broadcast_from_rank_zero(turnout.get_dataset_shard("train").count()))

    assert group_track.fit(train, datasets={"train": table}, dataset_config=config).return_value == 3


def test_a_retry_goes_on_inside_of_the_epoch(retrying_track: Track, tmp_path: Path) -> None:
    def train() -> list[int]:
        shard = turnout.get_dataset_shard("train")
        seen: list[int] = []
        checkpoint = turnout.get_checkpoint()
        if checkpoint is not None:
            saved = json.loads(text_in(checkpoint, f"state-{turnout.get_context().get_world_rank()}"))
            shard.load_state_dict(saved["shard"])
            seen = saved["seen"]
        for number, batch in enumerate(shard.iter_batches(batch_size=2)):
            seen += [int(x) for x in batch["x"]]
            if number == 2 and checkpoint is None:
                state = json.dumps({"shard": shard.state_dict(), "seen": seen})
                report_folder({"number": number}, {f"state-{turnout.get_context().get_world_rank()}": state})
                raise RuntimeError("once")
        return seen

    run_config = RunConfig(failure_config=FailureConfig(max_failures=1))
    result = retrying_track.fit(train, datasets={"train": numbers_in(tmp_path)}, run_config=run_config)
    size = 30 // retrying_track.world_size
    assert result.return_value == list(range(size))


def test_what_is_no_parquet_is_refused_before_the_function_is_entered(track: Track, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"datasets\['train'\].*nothing-here"):
        track.fit((tmp_path / "entered").touch, datasets={"train": tmp_path / "nothing-here"})
    assert not (tmp_path / "entered").exists()
