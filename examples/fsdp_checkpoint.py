"""Save a sharded model from two ranks, and go on with it on one rank and on three.

python examples/fsdp_checkpoint.py

No rank gathers the model to save it: torch.distributed.checkpoint has each write its shards straight into the run's
folder, and Turnout commits what is there. The ranks are processes on this machine, and need no GPU.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.utils.data import DataLoader, TensorDataset

import turnout
from turnout import Checkpoint, CheckpointUploadMode, LoggingConfig, Result, RunConfig, ScalingConfig
from turnout.torch import TorchTrainer, enable_reproducibility, prepare_data_loader, prepare_model

Weights = dict[str, torch.Tensor]


def train(config: dict[str, Any]) -> tuple[Weights, Weights]:
    """Train a sharded network; returns the weights that it began with and those that it ended with."""
    enable_reproducibility(seed=0)
    data = TensorDataset(config["images"], config["labels"])
    share = 60 // turnout.get_context().get_world_size()  # 60 rows a step, whether 1, 2 or 3 ranks share them
    loader = prepare_data_loader(DataLoader(data, batch_size=share, drop_last=True))
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = prepare_model(network, parallel_strategy="fsdp2")  # at world size 1 there is nothing to shard
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first_epoch = 0

    checkpoint = turnout.get_checkpoint()
    if checkpoint is not None:
        # Each rank says which parts it wants, by giving the state that it has, and gets them whoever wrote them.
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, "epoch": -1}
        with checkpoint.as_directory() as folder:
            dcp.load(state, checkpoint_id=folder)  # type: ignore[attr-defined]  # torch exports it without a word
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
        first_epoch = state["epoch"] + 1
    began_with = whole(model)

    for epoch in range(first_epoch, config["epochs"]):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            metrics = {"epoch": epoch, "loss": nn.functional.cross_entropy(model(data.tensors[0]), data.tensors[1])}
        model_state, optimizer_state = get_state_dict(model, optimizer)
        folder = turnout.get_context().get_storage().checkpoint_path(f"epoch_{epoch}")
        state = {"model": model_state, "optimizer": optimizer_state, "epoch": epoch}
        dcp.save(state, checkpoint_id=folder)  # type: ignore[attr-defined]  # as above
        turnout.report(
            metrics,
            checkpoint=Checkpoint(folder),
            checkpoint_dir_name=f"epoch_{epoch}",
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,  # the files are in their place already
        )
    return began_with, whole(model)


def whole(model: nn.Module) -> Weights:
    """A copy of all weights on rank 0, to be compared; what is sharded for its size would not fit there."""
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {name: value.clone() for name, value in weights.items() if isinstance(value, torch.Tensor)}


def run(num_workers: int, num_epochs: int, storage_path: str, start: Checkpoint | None = None) -> Result:
    """Train on so many processes. The data is small, and goes to them with the config."""
    images, labels = load_digits(return_X_y=True)
    config = {"epochs": num_epochs, "images": torch.tensor(images / 16).float(), "labels": torch.tensor(labels)}
    return TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=num_workers, controller="process"),
        run_config=RunConfig(
            name=f"on-{num_workers}", storage_path=storage_path, logging_config=LoggingConfig("WARNING")
        ),
        resume_from_checkpoint=start,
    ).fit()


def main() -> None:
    """Save from two ranks; load on one, and on three."""
    with tempfile.TemporaryDirectory() as storage_path:
        saved = run(2, num_epochs=2, storage_path=storage_path)
        print(f"2 ranks: trained, and saved their shards; {said(saved)}")
        for num_workers in (1, 3):
            result = run(num_workers, num_epochs=4, storage_path=storage_path, start=saved.checkpoint)
            (_, ended_with), (began_with, _) = saved.return_value, result.return_value
            is_equal = all(torch.equal(ended_with[name], began_with[name]) for name in ended_with)
            print(
                f"{num_workers} rank(s): loaded {'the same' if is_equal else 'OTHER'} weights, went on; {said(result)}"
            )


def said(result: Result) -> str:
    """Where a run has come to."""
    assert result.metrics is not None
    return f"epoch {result.metrics['epoch']}, loss {result.metrics['loss']:.4f}"


if __name__ == "__main__":
    main()
