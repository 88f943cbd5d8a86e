"""What a user of PyTorch imports: `TorchTrainer`, and what its train function calls for devices, models and loaders."""

from turnout.backends.torch import TorchConfig
from turnout.integrations.torch import (
    enable_reproducibility,
    get_device,
    get_devices,
    prepare_data_loader,
    prepare_model,
)
from turnout.integrations.torch_sharded import load_sharded, save_sharded
from turnout.trainer.torch import TorchTrainer

__all__ = [
    "TorchConfig",
    "TorchTrainer",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "load_sharded",
    "prepare_data_loader",
    "prepare_model",
    "save_sharded",
]
