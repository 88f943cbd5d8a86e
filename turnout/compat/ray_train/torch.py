"""The names of `ray.train.torch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from turnout.compat.ray_train.checkpoints import FrameworkCheckpoint
from turnout.compat.ray_train.errors import DeprecatedError
from turnout.compat.ray_train.trainers import DataParallelTrainer
from turnout.torch import (
    TorchConfig,
    enable_reproducibility,
    get_device,
    get_devices,
    prepare_data_loader,
    prepare_model,
)
from turnout.trainer import torch as trainer

if TYPE_CHECKING:
    import torch

__all__ = [
    "TorchCheckpoint",
    "TorchConfig",
    "TorchTrainer",
    "accelerate",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
]

_AMP = "Ray Train has given it up: use torch.amp.autocast and torch.amp.GradScaler, or Lightning, in the train function"


class TorchTrainer(trainer.TorchTrainer, DataParallelTrainer):
    """`turnout.torch.TorchTrainer`, which refuses what Ray Train's does."""


class TorchCheckpoint(FrameworkCheckpoint):
    """Refused: save with ``torch.save`` into a folder, and report ``Checkpoint.from_directory(folder)``."""

    __slots__ = ()

    saved = "torch.save(model.state_dict(), ...)"


def accelerate(amp: bool = False) -> NoReturn:
    """Refused."""
    raise DeprecatedError(f"accelerate(): {_AMP}")


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> NoReturn:
    """Refused."""
    raise DeprecatedError(f"prepare_optimizer(): {_AMP}")


def backward(tensor: torch.Tensor) -> NoReturn:
    """Refused."""
    raise DeprecatedError(f"backward(): {_AMP}")
