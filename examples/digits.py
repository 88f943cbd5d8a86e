"""Train a small network to read handwritten digits: one function, which no track needs changed.

python examples/digits.py
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import turnout
from turnout import Checkpoint, LoggingConfig, Result, RunConfig, ScalingConfig
from turnout.loggers import ProgressLogger
from turnout.torch import TorchTrainer, enable_reproducibility, get_device, prepare_data_loader, prepare_model


def digits() -> tuple[TensorDataset, TensorDataset]:
    """The 1,797 images of 8 x 8 pixels that come with scikit-learn, a fifth of them held out."""
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, held_out = order[360:], order[:360]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])


def train(config: dict[str, Any]) -> None:
    """The train function: it resumes from the newest checkpoint, and reports one after every epoch."""
    enable_reproducibility(seed=0)
    train_set, held_out = digits()
    loader = prepare_data_loader(DataLoader(train_set, batch_size=config.get("batch_size", 64), shuffle=True))
    model = prepare_model(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.get("lr", 3e-3))
    first_epoch = 0

    checkpoint = turnout.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), map_location=get_device())
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, config.get("epochs", 16)):
        model.train()
        total = 0.0
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        metrics = {"epoch": epoch, "loss": total / len(loader), "accuracy": accuracy(model, held_out)}
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, os.path.join(folder, "state.pt"))
            turnout.report(metrics, checkpoint=Checkpoint.from_directory(folder))


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The share of images that the model reads right."""
    model.eval()
    images, labels = (tensor.to(get_device()) for tensor in data.tensors)
    return float((model(images).argmax(dim=1) == labels).float().mean())


def main() -> Result:
    """Train in this process, and show what came of it."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": 16},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(
            name="digits",
            callbacks=[ProgressLogger()],
            logging_config=LoggingConfig("WARNING"),  # each report is a line of the progress already
        ),
    )
    result = trainer.fit()
    show(result)
    return result


def show(result: Result) -> None:
    """A table of the result, and where to go next."""
    assert result.metrics is not None
    assert result.checkpoint is not None
    table = Table(title="digits, held out", show_header=False)
    table.add_row("accuracy", f"{result.metrics['accuracy']:.3f}")
    table.add_row("loss of the last epoch", f"{result.metrics['loss']:.4f}")
    table.add_row("epochs", str(result.metrics["epoch"] + 1))
    with result.checkpoint.as_directory() as folder:
        size = os.path.getsize(os.path.join(folder, "state.pt"))
    table.add_row("last checkpoint", f"{size / 1024:.0f} KiB")
    Console(highlight=False).print(table)
    print(
        "Next: put breakpoint() into train() of examples/digits.py and run\n"
        "  .venv/bin/python examples/digits.py\n"
        "The function runs in that very process, so the debugger stops in it.\n"
        "README.md shows its unit test, and ARCHITECTURE.md is the map of the code."
    )


if __name__ == "__main__":
    main()
