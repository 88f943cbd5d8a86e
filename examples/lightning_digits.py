"""Train a Lightning module to read handwritten digits: by Lightning alone, on one process and on two, to the same end.

python examples/lightning_digits.py

The train function is Lightning's own three lines, a Trainer and its fit(), with Turnout's strategy and callback. It
resumes: the trainer goes on from the newest checkpoint, with its epoch, its step, its optimizer and its schedule.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any

import pytorch_lightning as pl  # or: import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import turnout
from turnout import LoggingConfig, RunConfig, ScalingConfig
from turnout.lightning import DDPStrategy, ReportCallback, prepare_trainer
from turnout.torch import TorchTrainer

EPOCHS = 4
BATCH_SIZE = 64
OPTIONS: dict[str, Any] = {
    "max_epochs": EPOCHS,
    "accelerator": "auto",
    "logger": False,
    "enable_checkpointing": False,  # the run keeps them
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Digits(pl.LightningModule):
    """A network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """Log what is reported."""
        images, labels = batch
        output = self.network(images)
        loss = nn.functional.cross_entropy(output, labels)
        accuracy = (output.argmax(dim=1) == labels).float().mean()
        self.log_dict({"loss": loss, "accuracy": accuracy}, sync_dist=True, batch_size=len(labels))

    def configure_optimizers(self) -> Any:
        """Adam, slower in each epoch."""
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)]


def loaders(num_ranks: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """The 1,797 images that come with scikit-learn, a fifth of them held out. All ranks share each batch."""
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, held_out = (TensorDataset(images[rows], labels[rows]) for rows in (order[360:], order[:360]))
    # Lightning deals rows to ranks by such a sampler, unless there is one, as a trainer that is alone would not.
    sampler: DistributedSampler[Any] | None = DistributedSampler(train, 1, 0) if num_ranks == 1 else None
    share = BATCH_SIZE // num_ranks
    return DataLoader(train, batch_size=share, sampler=sampler, drop_last=True), DataLoader(held_out, batch_size=180)


def train() -> None:
    """The train function."""
    trainer = prepare_trainer(pl.Trainer(strategy=DDPStrategy(), callbacks=[ReportCallback()], **OPTIONS))
    checkpoint = turnout.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as folder:
        path = os.path.join(folder, ReportCallback.CHECKPOINT_NAME) if folder else None
        trainer.fit(Digits(), *loaders(trainer.world_size), ckpt_path=path)


def alone() -> dict[str, Any]:
    """The metrics of Lightning without Turnout."""
    trainer = pl.Trainer(devices=1, **OPTIONS)
    trainer.fit(Digits(), *loaders(1))
    return dict(trainer.callback_metrics)


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
    for name, metrics in (("Lightning alone", alone()), ("in process", on(0)), ("on 2 ranks", on(2))):
        print(f"{name}: loss {float(metrics['loss']):.4f}, accuracy {float(metrics['accuracy']):.3f}")


if __name__ == "__main__":
    main()
