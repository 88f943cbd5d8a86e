"""The names of Ray Train's V2 API, which mean Turnout here, and the switch by which ``import ray.train`` finds them.

``python -m turnout.compat.ray_train script.py`` runs a script that was written for Ray Train, as it stands. This module
has the names of `ray.train`, those beside it have those of `ray.train.torch` and the rest; `names.py` has the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.callback import UserCallback
    from turnout.checkpoint import Checkpoint, ReportedCheckpoint, ReportedCheckpointStatus
    from turnout.compat.ray_train.config import (
        TRAIN_DATASET_KEY,
        CheckpointConfig,
        DataConfig,
        FailureConfig,
        RunConfig,
        ScalingConfig,
        SyncConfig,
        ValidationFn,
    )
    from turnout.compat.ray_train.context import TrainContext, get_context
    from turnout.compat.ray_train.errors import NCCLHangError
    from turnout.compat.ray_train.switch import install
    from turnout.config import (
        BackendConfig,
        CheckpointConsistencyMode,
        CheckpointUploadMode,
        LoggingConfig,
        PreemptionInfo,
        ValidationConfig,
        ValidationTaskConfig,
    )
    from turnout.errors import ControllerError, PreemptionError, TrainingFailedError, WorkerGroupError
    from turnout.result import Result
    from turnout.session.functions import (
        get_all_reported_checkpoints,
        get_checkpoint,
        get_dataset_shard,
        get_preemption_info,
        report,
    )
else:
    # Each name is imported when it is first used (PEP 562): the switch is to cost a program next to nothing.
    _HOMES = {
        "turnout.callback": ["UserCallback"],
        "turnout.checkpoint": ["Checkpoint", "ReportedCheckpoint", "ReportedCheckpointStatus"],
        "turnout.compat.ray_train.config": [
            "CheckpointConfig",
            "DataConfig",
            "FailureConfig",
            "RunConfig",
            "ScalingConfig",
            "SyncConfig",
            "TRAIN_DATASET_KEY",
            "ValidationFn",
        ],
        "turnout.compat.ray_train.context": ["TrainContext", "get_context"],
        "turnout.compat.ray_train.errors": ["NCCLHangError"],
        "turnout.compat.ray_train.switch": ["install"],
        "turnout.config": [
            "BackendConfig",
            "CheckpointConsistencyMode",
            "CheckpointUploadMode",
            "LoggingConfig",
            "PreemptionInfo",
            "ValidationConfig",
            "ValidationTaskConfig",
        ],
        "turnout.errors": ["ControllerError", "PreemptionError", "TrainingFailedError", "WorkerGroupError"],
        "turnout.result": ["Result"],
        "turnout.session.functions": [
            "get_all_reported_checkpoints",
            "get_checkpoint",
            "get_dataset_shard",
            "get_preemption_info",
            "report",
        ],
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOME_OF})


__all__ = [
    "TRAIN_DATASET_KEY",
    "BackendConfig",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointUploadMode",
    "ControllerError",
    "DataConfig",
    "FailureConfig",
    "LoggingConfig",
    "NCCLHangError",
    "PreemptionError",
    "PreemptionInfo",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "SyncConfig",
    "TrainContext",
    "TrainingFailedError",
    "UserCallback",
    "ValidationConfig",
    "ValidationFn",
    "ValidationTaskConfig",
    "WorkerGroupError",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "install",
    "report",
]
