"""Local mode: the train function runs in this process, or under torchrun in each of its processes."""

import json
import os
import tempfile

import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, ScalingConfig
from ray.train.collective import barrier, broadcast_from_rank_zero
from ray.train.torch import TorchTrainer, prepare_model


def train_loop_per_worker():
    torch.manual_seed(1)
    context = ray.train.get_context()
    model = prepare_model(torch.nn.Linear(2, 1))
    output = model(torch.full((1, 2), 1.0 + context.get_world_rank())).sum()
    output.backward()
    gradient = next(model.parameters()).grad.sum().item()
    barrier()
    told = broadcast_from_rank_zero(context.get_world_rank())
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "rank.txt"), "w") as file:
            file.write(str(context.get_world_rank()))
        ray.train.report({"gradient": gradient, "told": told}, checkpoint=Checkpoint.from_directory(folder))
        assert ray.train.get_checkpoint() is not None
    return [context.get_world_rank(), context.get_world_size(), context.get_local_rank(), context.get_node_rank()]


result = TorchTrainer(train_loop_per_worker, scaling_config=ScalingConfig(num_workers=0)).fit()
print(
    "RESULT",
    json.dumps(
        {
            "ranks": result.return_value,
            "gradient": result.metrics["gradient"],
            "told by rank 0": result.metrics["told"],
            "path": result.path,
            "is checkpoint readable": os.path.exists(os.path.join(result.checkpoint.path, "rank.txt")),
        }
    ),
)
