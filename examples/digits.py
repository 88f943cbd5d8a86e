"""Train a small network to read handwritten digits: one function, which no track needs changed.

python examples/digits.py                            # in this process
torchrun --nproc-per-node 2 examples/digits.py       # on two processes of torchrun's
TURNOUT_NUM_WORKERS=2 TURNOUT_CONTROLLER=process python examples/digits.py    # on two processes of Turnout's

However many train together, they see the same batches and end at the same loss.
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
from torch.utils.data import DataLoader, Subset, TensorDataset

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
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = prepare_model(network)  # trains the parameters of network, with the other ranks if there are any
    optimizer = torch.optim.Adam(network.parameters(), lr=config.get("lr", 3e-3))
    first_epoch = 0

    checkpoint = turnout.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), map_location=get_device())
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, config.get("epochs", 16)):
        for images, labels in batches(train_set, config.get("batch_size", 64), epoch):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        train_loss, _ = evaluate(network, train_set)
        _, accuracy = evaluate(network, held_out)
        with tempfile.TemporaryDirectory() as folder:
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, os.path.join(folder, "state.pt"))  # the same on every rank, and kept once
            metrics = {"epoch": epoch, "loss": train_loss, "accuracy": accuracy}
            turnout.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def batches(data: TensorDataset, batch_size: int, epoch: int) -> DataLoader[Any]:
    """This rank's share of an epoch's batches. The epoch alone decides their order, and all ranks share each batch."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
    share = batch_size // turnout.get_context().get_world_size()
    return prepare_data_loader(DataLoader(Subset(data, order.tolist()), batch_size=share, drop_last=True))


@torch.no_grad()
def evaluate(network: nn.Module, data: TensorDataset) -> tuple[float, float]:
    """The loss over all of the data, and the share of images that the network reads right."""
    images, labels = (tensor.to(get_device()) for tensor in data.tensors)
    output = network(images)
    loss = nn.functional.cross_entropy(output, labels)
    return loss.item(), (output.argmax(dim=1) == labels).float().mean().item()


def main() -> Result:
    """Train, and show what came of it."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": 16},
        scaling_config=ScalingConfig(num_workers=0),  # in this process, or in each of torchrun's
        run_config=RunConfig(
            callbacks=[ProgressLogger()],
            logging_config=LoggingConfig("WARNING"),  # each report is a line of the progress already
        ),
    )
    result = trainer.fit()
    if os.environ.get("RANK", "0") == "0":  # each of torchrun's processes is here, and one of them is enough
        show(result)
    return result


def show(result: Result) -> None:
    """A table of the result, and where to go next."""
    assert result.metrics is not None
    assert result.checkpoint is not None
    table = Table(title="digits", show_header=False)
    table.add_row("accuracy, held out", f"{result.metrics['accuracy']:.3f}")
    table.add_row("loss", f"{result.metrics['loss']:.4f}")
    table.add_row("epochs", str(result.metrics["epoch"] + 1))
    with result.checkpoint.as_directory() as folder:
        size = os.path.getsize(os.path.join(folder, "state.pt"))
    table.add_row("last checkpoint", f"{size / 1024:.0f} KiB")
    Console(highlight=False).print(table)
    print(
        "Next: put breakpoint() into train() of examples/digits.py and run\n"
        "  .venv/bin/python examples/digits.py\n"
        "The function runs in that very process, so the debugger stops in it. Or train on two processes:\n"
        "  .venv/bin/torchrun --nproc-per-node 2 examples/digits.py\n"
        "  TURNOUT_NUM_WORKERS=2 TURNOUT_CONTROLLER=process .venv/bin/python examples/digits.py\n"
        "README.md shows its unit test, and ARCHITECTURE.md is the map of the code."
    )


if __name__ == "__main__":
    main()
