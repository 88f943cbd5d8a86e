"""What `get_dataset_shard` gives, on every track."""

from __future__ import annotations

import pytest

import turnout
from tests.contract.tracks import Track
from turnout import DataError, FailureConfig, RunConfig, UsageError


def test_any_object_is_handed_over_as_it_is(track: Track) -> None:
    data = object()
    assert track.fit(lambda: turnout.get_dataset_shard("train"), datasets={"train": data}).return_value is data


def test_a_callable_is_called_before_the_function_starts_and_before_every_attempt(track: Track) -> None:
    calls: list[str] = []

    def make() -> list[int]:
        calls.append("data")
        return [1, 2, 3]

    def train() -> int:
        calls.append("train")
        shard = turnout.get_dataset_shard("train")
        total: int = sum(shard)
        shard.clear()
        if calls.count("train") == 1:
            raise RuntimeError("once")
        return total

    run_config = RunConfig(failure_config=FailureConfig(max_failures=1))
    assert track.fit(train, datasets={"train": make}, run_config=run_config).return_value == 6
    assert calls == ["data", "train", "data", "train"]


def test_the_only_dataset_needs_no_name(track: Track) -> None:
    assert track.fit(turnout.get_dataset_shard, datasets={"train": [1]}).return_value == [1]


def test_with_several_datasets_a_name_is_asked_for(track: Track) -> None:
    with pytest.raises(UsageError, match=r"several datasets.*'train', 'test'"):
        track.fit(lambda: turnout.get_dataset_shard(), datasets={"train": [1], "test": [2]})


def test_an_unknown_dataset_names_the_known_ones(track: Track) -> None:
    with pytest.raises(UsageError, match=r"'nope'.*'train'"):
        track.fit(lambda: turnout.get_dataset_shard("nope"), datasets={"train": [1]})


def test_without_datasets_the_error_says_how_to_give_one(track: Track) -> None:
    with pytest.raises(UsageError, match="datasets="):
        track.fit(lambda: turnout.get_dataset_shard("train"))


def test_a_callable_that_raises_names_the_dataset(track: Track) -> None:
    def broken() -> None:
        raise OSError("no such table")

    with pytest.raises(DataError, match=r"datasets\['train'\].*no such table"):
        track.fit(lambda: None, datasets={"train": broken})
