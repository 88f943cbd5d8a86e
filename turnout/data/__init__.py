"""Data: how the trainer's data sets are dealt to ranks."""

from turnout.data.shards import shards_for

__all__ = ["shards_for"]
