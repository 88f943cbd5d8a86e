"""Train by an accelerate loop to read handwritten digits: by itself, on one process and on two, to the same end.

python examples/accelerate_digits.py

The loop is the same in all three: within a train function `Accelerator()` finds the ranks of the run.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import turnout
from turnout import Checkpoint, LoggingConfig, RunConfig, ScalingConfig
from turnout.torch import TorchTrainer

EPOCHS = 4
BATCH_SIZE = 64


def loop(report: Any = None) -> dict[str, float]:
    """Accelerate's own loop; all ranks share each batch.

    Args:
        report: called after each epoch with the metrics and the network.
    """
    accelerator = Accelerator()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    rows, held_out = order[360:1768], order[:360]
    loader = DataLoader(TensorDataset(images[rows], labels[rows]), batch_size=BATCH_SIZE // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(network, torch.optim.Adam(network.parameters(), lr=3e-3), loader)
    metrics: dict[str, float] = {}
    for epoch in range(EPOCHS):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        with torch.no_grad():
            output = network(images[held_out].to(accelerator.device))
        expected = labels[held_out].to(accelerator.device)
        accuracy = (output.argmax(dim=1) == expected).float().mean().item()
        metrics = {
            "epoch": epoch,
            "loss": nn.functional.cross_entropy(output, expected).item(),
            "accuracy": accuracy,
            "processes": accelerator.num_processes,
        }
        if report is not None:
            report(metrics, accelerator.unwrap_model(model))
    return metrics


def train() -> None:
    """The train function."""
    loop(report)


def report(metrics: dict[str, float], network: nn.Module) -> None:
    """A checkpoint after each epoch; the same on every rank, and kept once."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(network.state_dict(), os.path.join(folder, "network.pt"))
        turnout.report(dict(metrics), checkpoint=Checkpoint.from_directory(folder))


def on(num_workers: int) -> dict[str, Any]:
    """The metrics of Turnout on so many processes; 0 is this one."""
    with tempfile.TemporaryDirectory() as storage_path:
        result = TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=num_workers, controller="process" if num_workers else None),
            run_config=RunConfig(storage_path=storage_path, logging_config=LoggingConfig("WARNING")),
        ).fit()
    assert result.metrics is not None
    return result.metrics


def main() -> None:
    """Train in three ways, and show what came of each."""
    for name, metrics in (("accelerate alone", loop()), ("in process", on(0)), ("on 2 ranks", on(2))):
        counted = f"{metrics['processes']} process(es)"
        print(f"{name}: loss {metrics['loss']:.4f}, accuracy {metrics['accuracy']:.3f}, {counted}")


if __name__ == "__main__":
    main()
