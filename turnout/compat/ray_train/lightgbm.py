"""The names of `ray.train.lightgbm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from turnout.checkpoint import Checkpoint
from turnout.compat.ray_train.checkpoints import FrameworkCheckpoint
from turnout.compat.ray_train.errors import DeprecatedError, refuse
from turnout.compat.ray_train.trainers import DataParallelTrainer
from turnout.config import DataConfig, RunConfig, ScalingConfig, ValidationConfig
from turnout.lightgbm import LightGBMConfig, get_network_params, normalize_pandas_for_lightgbm
from turnout.lightgbm import ReportCallback as RayTrainReportCallback
from turnout.trainer import lightgbm as trainer

__all__ = [
    "LightGBMCheckpoint",
    "LightGBMConfig",
    "LightGBMTrainer",
    "RayTrainReportCallback",
    "get_network_params",
    "normalize_pandas_for_lightgbm",
]


class LightGBMTrainer(trainer.LightGBMTrainer, DataParallelTrainer):
    """`turnout.lightgbm.LightGBMTrainer`, which refuses what Ray Train's does."""

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
        label_column: str | None = None,
        params: dict[str, Any] | None = None,  # Any: LightGBM's own
        num_boost_round: int | None = None,
    ) -> None:
        refuse(
            "LightGBMTrainer of Ray Train has given it up: call lightgbm.train in a train function of your own, and "
            "pass that as train_loop_per_worker",
            label_column=label_column,
            params=params,
            num_boost_round=num_boost_round,
        )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            lightgbm_config=lightgbm_config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> NoReturn:
        """Refused: the callback has it."""
        raise DeprecatedError(
            "LightGBMTrainer.get_model(): Ray Train has given it up: use RayTrainReportCallback.get_model(checkpoint)"
        )


class LightGBMCheckpoint(FrameworkCheckpoint):
    """Refused: `RayTrainReportCallback` writes checkpoints, and its ``get_model`` reads them."""

    __slots__ = ()

    saved = "booster.save_model(...)"
