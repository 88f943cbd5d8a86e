"""The worker's side: the functions that a train function calls, and the session that gives them their meaning."""

from turnout.session.activation import activated, active, is_active_here, outside
from turnout.session.channel import Channel
from turnout.session.context import TrainContext
from turnout.session.functions import (
    barrier,
    broadcast_from_rank_zero,
    get_all_reported_checkpoints,
    get_checkpoint,
    get_context,
    get_dataset_shard,
    get_preemption_info,
    report,
)
from turnout.session.train_fn_utils import LocalTrainFnUtils, TrainFnUtils, WorkerTrainFnUtils

__all__ = [
    "Channel",
    "LocalTrainFnUtils",
    "TrainContext",
    "TrainFnUtils",
    "WorkerTrainFnUtils",
    "activated",
    "active",
    "barrier",
    "broadcast_from_rank_zero",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "is_active_here",
    "outside",
    "report",
]
