"""A linear model on two workers: the loader is dealt, the model is averaged, and every epoch is reported."""

import json
import os
import sys
import tempfile

import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset

STORAGE = sys.argv[1]


def train_loop_per_worker(config):
    torch.manual_seed(0)
    inputs = torch.linspace(-1, 1, 32).reshape(-1, 1)
    dataset = TensorDataset(inputs, 3 * inputs + 1)
    loader = prepare_data_loader(DataLoader(dataset, batch_size=4, shuffle=True))
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    context = ray.train.get_context()
    for epoch in range(config["epochs"]):
        if context.get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        rows = 0
        for features, labels in loader:
            loss = torch.nn.functional.mse_loss(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows += len(features)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if context.get_world_rank() == 0:
                bare = model.module if hasattr(model, "module") else model
                torch.save(bare.state_dict(), os.path.join(folder, "model.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            weight = next(model.parameters()).item()
            ray.train.report(
                {"epoch": epoch, "rows": rows, "weight": weight, "device": str(get_device())}, checkpoint=checkpoint
            )


trainer = TorchTrainer(
    train_loop_per_worker,
    train_loop_config={"lr": 0.1, "epochs": 3},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="pytorch", storage_path=STORAGE, checkpoint_config=CheckpointConfig(num_to_keep=1)),
)
result = trainer.fit()

with result.checkpoint.as_directory() as folder:
    state = torch.load(os.path.join(folder, "model.pt"), weights_only=True)
metrics = dict(result.metrics)
print(
    "RESULT",
    json.dumps(
        {
            **metrics,
            "weight": round(metrics["weight"], 4),
            "saved weight": round(state["weight"].item(), 4),
            "kept": len(result.best_checkpoints),
            "path": os.path.basename(result.path),
        }
    ),
)
