"""`TorchTrainer`: a `DataParallelTrainer` for train functions that use PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turnout.backends.torch import TorchConfig
from turnout.checkpoint import Checkpoint
from turnout.config import DataConfig, RunConfig, ScalingConfig, ValidationConfig
from turnout.trainer.data_parallel import DataParallelTrainer

__all__ = ["TorchTrainer"]


class TorchTrainer(DataParallelTrainer):
    """Runs a train function that uses PyTorch; `turnout.torch` has what it calls for devices, models and loaders.

    Args:
        train_loop_per_worker: the train function: of no argument, or of one, the config.
        train_loop_config: the config; the function gets a copy.
        torch_config: how the process group of several ranks is set up.
        scaling_config: how many workers; ``ScalingConfig(num_workers=0)`` trains in the current process.
        run_config: the run's name, storage, retries and callbacks.
        datasets: what `turnout.get_dataset_shard` gives, by name.
        dataset_config: how they are dealt to ranks.
        validation_config: what ``report(..., validation=True)`` runs.
        metadata: kept with the run.
        resume_from_checkpoint: what `turnout.get_checkpoint` gives while the run has no checkpoint of its own.

    Raises:
        UsageError: an argument cannot be meant; nothing has run then.
    """

    _trains_under_torchrun = True

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],  # Any: the user's own return value
        *,
        train_loop_config: Any = None,  # Any: the user's own
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,  # Any: data of the user's
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        metadata: dict[str, Any] | None = None,  # Any: the user's own
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=torch_config or TorchConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )
