"""`LightGBMTrainer`: a `DataParallelTrainer` for train functions that use LightGBM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turnout.backends.lightgbm import LightGBMConfig, imported_lightgbm
from turnout.checkpoint import Checkpoint
from turnout.config import DataConfig, RunConfig, ScalingConfig, ValidationConfig
from turnout.trainer.data_parallel import DataParallelTrainer

__all__ = ["LightGBMTrainer"]


class LightGBMTrainer(DataParallelTrainer):
    """Runs a train function that uses LightGBM.

    On several ranks `lightgbm.train` grows one model from the rows of all, if its parameters have a ``tree_learner``
    such as ``"data"``, and those of `turnout.lightgbm.get_network_params`.

    Args:
        train_loop_per_worker: the train function: of no argument, or of one, the config.
        train_loop_config: the config; the function gets a copy.
        lightgbm_config: how LightGBM is set up on the ranks.
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
        lightgbm_config: LightGBMConfig | None = None,
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
            backend_config=lightgbm_config or LightGBMConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )

    def _local_controller(self, run: RunConfig) -> str:
        imported_lightgbm("LightGBMTrainer")  # this process trains
        return super()._local_controller(run)
