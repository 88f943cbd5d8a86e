"""Ranks meet and are told rank 0's value."""

import json
import sys

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.collective import barrier, broadcast_from_rank_zero
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def train_loop_per_worker():
    context = ray.train.get_context()
    rank = context.get_world_rank()
    barrier()
    seed = broadcast_from_rank_zero({"seed": 40 + rank})
    ray.train.report({"seed": seed["seed"], "rank": rank})
    return {"seed": seed["seed"] + 2, "sizes": [context.get_world_size(), context.get_local_world_size()]}


result = DataParallelTrainer(
    train_loop_per_worker,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="collectives", storage_path=sys.argv[1]),
).fit()
print("RESULT", json.dumps({"value": result.return_value, "metrics": result.metrics}))
