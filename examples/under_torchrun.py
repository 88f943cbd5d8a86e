"""A script for torchrun, as one has it: samplers that shuffle by the epoch, barriers, and every rank saves its model.

python examples/under_torchrun.py                           # one process, to debug
torchrun --nproc-per-node 2 examples/under_torchrun.py      # two; nothing in the script knows of it beforehand

Nothing is stored unless TURNOUT_STORAGE_PATH says where; every rank holds its own result then.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import turnout
from turnout import Checkpoint, LoggingConfig, RunConfig, ScalingConfig
from turnout.torch import TorchTrainer, prepare_data_loader, prepare_model


def train(config: dict[str, Any]) -> None:
    """A usual loop of torch's; torchrun's process group is there when it begins."""
    context = turnout.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()

    # Where data is downloaded, rank 0 goes first and the others find it there. (These images come with scikit-learn.)
    if rank > 0:
        dist.barrier()
    images, labels = load_digits(return_X_y=True)
    if rank == 0 and world_size > 1:
        dist.barrier()

    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    loader = prepare_data_loader(DataLoader(data, batch_size=config["batch_size"] // world_size, shuffle=True))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = prepare_model(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    for epoch in range(config["epochs"]):
        if world_size > 1:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # shuffles anew; the sampler is a distributed one
        total = torch.zeros(())
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        if world_size > 1:
            dist.all_reduce(total)
            total /= world_size
        with tempfile.TemporaryDirectory() as folder:
            torch.save(network.state_dict(), os.path.join(folder, "model.pt"))
            turnout.report({"epoch": epoch, "loss": total / len(loader)}, checkpoint=Checkpoint.from_directory(folder))
        if rank == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.4f} over {world_size} rank(s)")


def main() -> None:
    """Train, and show what each rank has."""
    result = TorchTrainer(
        train,
        train_loop_config={"epochs": 4, "batch_size": 64},
        scaling_config=ScalingConfig(num_workers=0),  # no processes but those that are there
        run_config=RunConfig(logging_config=LoggingConfig("WARNING")),
    ).fit()
    assert result.metrics is not None
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as folder:
        files = ", ".join(sorted(name for name in os.listdir(folder) if not name.startswith(".")))
    place = "in memory" if result.path is None else "stored"
    print(f"rank {os.environ.get('RANK', '0')}: loss {result.metrics['loss']:.4f}; {files} {place}\n", end="")


if __name__ == "__main__":
    main()
