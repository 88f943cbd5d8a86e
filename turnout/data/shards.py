"""From the trainer's ``datasets`` to what `get_dataset_shard` gives on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.errors import DataError

__all__ = ["shards_for"]


def shards_for(datasets: Mapping[str, Any]) -> dict[str, Any]:  # Any: data of the user's
    """The whole of every data set, for the one rank of an in-process run; a callable is called for it.

    A callable is called before every attempt, so that a retry does not find an iterator that is used up.

    Raises:
        DataError: a callable raised; the text names the data set.
    """
    shards = {}
    for name, dataset in datasets.items():
        if callable(dataset):
            try:
                shards[name] = dataset()
            except Exception as error:
                text = f"datasets[{name!r}]: the function that makes it raised {type(error).__name__}: {error}"
                raise DataError(text) from error
        else:
            shards[name] = dataset
    return shards
