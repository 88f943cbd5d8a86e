"""Which data sets can be dealt to several ranks, and what is refused before the ranks start."""

from __future__ import annotations

from typing import Any

import pytest

from turnout import DataConfig, DataError, UnsupportedError, UsageError
from turnout.data.shards import check_datasets, shards_for

WHOLE = DataConfig(datasets_to_split=[])


class FromRay:
    """Stands for a Ray data set, which is known by the package that its class is from."""

    __module__ = "ray.data.dataset"


@pytest.mark.parametrize("data", [[1, 2], {"x": 1}, object()], ids=["list", "dict", "object"])
def test_what_cannot_be_cut_is_refused_on_several_ranks_unless_it_stays_whole(data: Any) -> None:
    with pytest.raises(
        DataError, match=r"datasets\['train'\], a \w+: this cannot be cut.*each of 3.*datasets_to_split"
    ):
        check_datasets({"train": data}, DataConfig(), world_size=3)
    with pytest.raises(DataError, match=r"datasets\['train'\]"):
        check_datasets({"test": data, "train": data}, DataConfig(datasets_to_split=["train"]), world_size=2)
    for config, world_size in ((WHOLE, 3), (DataConfig(), 1)):
        check_datasets({"train": data}, config, world_size=world_size)
        assert shards_for({"train": data}, config, world_size=world_size)["train"] is data


def test_what_a_callable_makes_is_judged_where_it_is_called() -> None:
    datasets = {"train": lambda: [1, 2]}
    check_datasets(datasets, DataConfig(), world_size=2)
    with pytest.raises(DataError, match=r"datasets\['train'\], a list"):
        shards_for(datasets, DataConfig(), world_size=2)
    assert shards_for(datasets, WHOLE, world_size=2) == {"train": [1, 2]}


@pytest.mark.parametrize("error", [UsageError, UnsupportedError])
@pytest.mark.parametrize("config", [DataConfig(), WHOLE], ids=["cut", "whole"])
def test_a_ray_data_set_is_refused_as_the_track_says(
    config: DataConfig, error: type[UsageError | UnsupportedError]
) -> None:
    with pytest.raises(error, match=r"datasets\['train'\] is a Ray data set.*controller='ray'"):
        check_datasets({"train": FromRay()}, config, world_size=2, ray_error=error)
    check_datasets({"train": FromRay()}, config, world_size=1)
    with pytest.raises(UsageError, match="is a Ray data set"):
        shards_for({"train": FromRay}, config, world_size=2)


def test_a_data_set_to_be_cut_that_the_trainer_has_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"names 'trains'; the trainer's datasets are 'train'"):
        check_datasets({"train": [1]}, DataConfig(datasets_to_split=["trains"]), world_size=1)
