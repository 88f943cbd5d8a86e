"""Data: how the trainer's data sets are dealt to ranks."""

from turnout.data.ray_data import RayDealer
from turnout.data.shards import check_datasets, made_on_driver, shards_for
from turnout.data.site import Site

__all__ = ["RayDealer", "Site", "check_datasets", "made_on_driver", "shards_for"]
