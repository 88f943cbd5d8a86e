"""The names of `ray.train.collective`."""

from turnout.collective import barrier, broadcast_from_rank_zero

__all__ = ["barrier", "broadcast_from_rank_zero"]
