"""The table of the modules of Ray Train that mean Turnout, and of those of Ray's that are refused beside them.

A module that is not named here is Ray's own, also below one that is: `ray.train._internal` is the real one.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MODULES", "REFUSED", "Source"]


class Source(NamedTuple):
    """Where a module's names are.

    Args:
        module: of Turnout's.
        names: those that it has; None for all that ``module`` exports.
    """

    module: str
    names: tuple[str, ...] | None = None


_HERE = __name__.rpartition(".")[0]
_TORCH_FUNCTIONS = (
    "accelerate",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
)

MODULES = {
    "ray.train": Source(_HERE),
    "ray.train.collective": Source(f"{_HERE}.collective"),
    "ray.train.collective.collectives": Source(f"{_HERE}.collective"),
    "ray.train.huggingface.transformers": Source(f"{_HERE}.huggingface.transformers"),
    "ray.train.lightgbm": Source(f"{_HERE}.lightgbm"),
    "ray.train.lightgbm.config": Source(f"{_HERE}.lightgbm", ("LightGBMConfig", "get_network_params")),
    "ray.train.lightgbm.lightgbm_checkpoint": Source(f"{_HERE}.lightgbm", ("LightGBMCheckpoint",)),
    "ray.train.lightgbm.lightgbm_trainer": Source(f"{_HERE}.lightgbm", ("LightGBMTrainer",)),
    "ray.train.lightning": Source(f"{_HERE}.lightning"),
    "ray.train.tensorflow": Source(f"{_HERE}.tensorflow"),
    "ray.train.tensorflow.config": Source(f"{_HERE}.tensorflow", ("TensorflowConfig",)),
    "ray.train.tensorflow.keras": Source(f"{_HERE}.keras"),
    "ray.train.tensorflow.tensorflow_checkpoint": Source(f"{_HERE}.tensorflow", ("TensorflowCheckpoint",)),
    "ray.train.tensorflow.tensorflow_trainer": Source(f"{_HERE}.tensorflow", ("TensorflowTrainer",)),
    "ray.train.tensorflow.train_loop_utils": Source(f"{_HERE}.tensorflow", ("prepare_dataset_shard",)),
    "ray.train.torch": Source(f"{_HERE}.torch"),
    "ray.train.torch.config": Source(f"{_HERE}.torch", ("TorchConfig",)),
    "ray.train.torch.torch_checkpoint": Source(f"{_HERE}.torch", ("TorchCheckpoint",)),
    "ray.train.torch.torch_trainer": Source(f"{_HERE}.torch", ("TorchTrainer",)),
    "ray.train.torch.train_loop_utils": Source(f"{_HERE}.torch", _TORCH_FUNCTIONS),
    "ray.train.v2.api.callback": Source(f"{_HERE}.v2", ("RayTrainCallback", "UserCallback")),
    "ray.train.v2.api.config": Source(
        _HERE, ("CheckpointConfig", "FailureConfig", "LoggingConfig", "RunConfig", "ScalingConfig")
    ),
    "ray.train.v2.api.context": Source(f"{_HERE}.v2", ("DistributedTrainContext", "LocalTrainContext", "TrainContext")),
    "ray.train.v2.api.data_parallel_trainer": Source(f"{_HERE}.trainers", ("DataParallelTrainer",)),
    "ray.train.v2.api.exceptions": Source(
        _HERE, ("ControllerError", "NCCLHangError", "PreemptionError", "TrainingFailedError", "WorkerGroupError")
    ),
    "ray.train.v2.api.preemption": Source(_HERE, ("PreemptionInfo",)),
    "ray.train.v2.api.report_config": Source(_HERE, ("CheckpointConsistencyMode", "CheckpointUploadMode")),
    "ray.train.v2.api.reported_checkpoint": Source(_HERE, ("ReportedCheckpoint", "ReportedCheckpointStatus")),
    "ray.train.v2.api.result": Source(_HERE, ("Result",)),
    "ray.train.v2.api.train_fn_utils": Source(
        _HERE,
        (
            "get_all_reported_checkpoints",
            "get_checkpoint",
            "get_context",
            "get_dataset_shard",
            "get_preemption_info",
            "report",
        ),
    ),
    "ray.train.v2.api.validation_config": Source(_HERE, ("ValidationConfig", "ValidationFn", "ValidationTaskConfig")),
    "ray.train.v2.jax": Source(f"{_HERE}.jax"),
    "ray.train.v2.jax.config": Source(f"{_HERE}.jax", ("JaxConfig",)),
    "ray.train.v2.jax.jax_trainer": Source(f"{_HERE}.jax", ("JaxTrainer",)),
    "ray.train.v2.lightgbm.lightgbm_trainer": Source(f"{_HERE}.lightgbm", ("LightGBMTrainer",)),
    "ray.train.v2.tensorflow.tensorflow_trainer": Source(f"{_HERE}.tensorflow", ("TensorflowTrainer",)),
    "ray.train.v2.torch.torch_trainer": Source(f"{_HERE}.torch", ("TorchTrainer",)),
    "ray.train.v2.torch.train_loop_utils": Source(f"{_HERE}.torch", _TORCH_FUNCTIONS),
    "ray.train.v2.xgboost.config": Source(f"{_HERE}.xgboost", ("XGBoostConfig",)),
    "ray.train.v2.xgboost.xgboost_trainer": Source(f"{_HERE}.xgboost", ("XGBoostTrainer",)),
    "ray.train.xgboost": Source(f"{_HERE}.xgboost"),
    "ray.train.xgboost.config": Source(f"{_HERE}.xgboost", ("XGBoostConfig",)),
    "ray.train.xgboost.xgboost_checkpoint": Source(f"{_HERE}.xgboost", ("XGBoostCheckpoint",)),
    "ray.train.xgboost.xgboost_trainer": Source(f"{_HERE}.xgboost", ("XGBoostTrainer",)),
}

REFUSED = {
    "ray.tune": (
        "Ray Tune runs on the insides of the real Ray Train. To tune, start the program without "
        "turnout.compat.ray_train: a Tune trial may well call a trainer of turnout's own"
    ),
    "ray.train.torch.xla": "Turnout drives CPUs and GPUs",
    "ray.train.v2.torch.torchft_config": "Turnout has no TorchFT; FailureConfig.max_failures restarts a run",
}
