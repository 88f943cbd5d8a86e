"""What `get_dataset_shard` gives, on every track."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import turnout
from tests.contract.tracks import Track, is_first_time
from turnout import DataConfig, DataError, FailureConfig, RunConfig, UsageError

WHOLE = DataConfig(datasets_to_split=[])


def test_an_object_that_is_not_cut_is_handed_to_every_rank_whole(track: Track) -> None:
    result = track.fit(
        lambda: turnout.get_dataset_shard("train"), datasets={"train": {"x": [1, 2]}}, dataset_config=WHOLE
    )
    assert result.return_values == track.on_every_rank({"x": [1, 2]})


def test_an_object_that_cannot_be_cut_is_refused_before_several_ranks_start(group_track: Track, tmp_path: Path) -> None:
    for data in ([1, 2, 3], pa.table({"x": [1, 2, 3]})):
        with pytest.raises(DataError, match=r"datasets\['train'\].*DataConfig\.datasets_to_split"):
            group_track.fit((tmp_path / "entered").touch, datasets={"train": data})
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
