"""A Lightning module on two workers, whose epochs the callback reports."""

import json
import os
import sys

import lightning
import torch
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.lightning import (
    RayDDPStrategy,
    RayLightningEnvironment,
    RayTrainReportCallback,
    prepare_trainer,
)
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        features, labels = batch
        loss = torch.nn.functional.mse_loss(self.layer(features), labels)
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train_loop_per_worker():
    lightning.seed_everything(0)
    inputs = torch.linspace(-1, 1, 32).reshape(-1, 1)
    loader = DataLoader(TensorDataset(inputs, 3 * inputs + 1), batch_size=4)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer = prepare_trainer(trainer)
    trainer.fit(Line(), train_dataloaders=loader)


result = TorchTrainer(
    train_loop_per_worker,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="lightning", storage_path=sys.argv[1], checkpoint_config=CheckpointConfig(num_to_keep=1)),
).fit()
with result.checkpoint.as_directory() as folder:
    names = os.listdir(folder)
    state = torch.load(os.path.join(folder, RayTrainReportCallback.CHECKPOINT_NAME), weights_only=False)
print(
    "RESULT",
    json.dumps(
        {
            "metrics": {name: round(value, 4) for name, value in result.metrics.items()},
            "has the file": RayTrainReportCallback.CHECKPOINT_NAME in names,
            "weight": round(state["state_dict"]["layer.weight"].item(), 4),
        }
    ),
)
