"""Data: how the trainer's data sets are dealt to ranks."""

from turnout.data.shards import check_datasets, shards_for

__all__ = ["check_datasets", "shards_for"]
