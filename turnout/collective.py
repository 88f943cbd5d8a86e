"""Meetings of all ranks inside a train function: `barrier` and `broadcast_from_rank_zero`."""

from turnout.session.functions import barrier, broadcast_from_rank_zero

__all__ = ["barrier", "broadcast_from_rank_zero"]
