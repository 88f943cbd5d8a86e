"""Turnout: one training function, unchanged, in a debugger, under torchrun and on a cluster."""

from __future__ import annotations

import logging as _logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.callback import UserCallback
    from turnout.checkpoint import Checkpoint, ReportedCheckpoint, ReportedCheckpointStatus
    from turnout.config import (
        BackendConfig,
        CheckpointConfig,
        CheckpointConsistencyMode,
        CheckpointUploadMode,
        DataConfig,
        FailureConfig,
        LoggingConfig,
        PreemptionInfo,
        RunConfig,
        ScalingConfig,
        TrainRunContext,
        ValidationConfig,
        ValidationTaskConfig,
    )
    from turnout.errors import (
        CheckpointCorruptError,
        CheckpointError,
        CheckpointNotCommittedError,
        CheckpointNotFoundError,
        ControllerError,
        DataError,
        MissingDependencyError,
        PreemptionError,
        ResourceError,
        StorageError,
        TrainingFailedError,
        TurnoutError,
        UnsupportedError,
        UsageError,
        WorkerGroupError,
    )
    from turnout.result import Result
    from turnout.session.context import TrainContext
    from turnout.session.functions import (
        get_all_reported_checkpoints,
        get_checkpoint,
        get_context,
        get_dataset_shard,
        get_preemption_info,
        report,
    )
    from turnout.trainer.data_parallel import DataParallelTrainer
else:
    # Each name is imported when it is first used, so that `import turnout` costs next to nothing (PEP 562).
    _HOMES = {
        "turnout.callback": ["UserCallback"],
        "turnout.checkpoint": ["Checkpoint", "ReportedCheckpoint", "ReportedCheckpointStatus"],
        "turnout.config": [
            "BackendConfig",
            "CheckpointConfig",
            "CheckpointConsistencyMode",
            "CheckpointUploadMode",
            "DataConfig",
            "FailureConfig",
            "LoggingConfig",
            "PreemptionInfo",
            "RunConfig",
            "ScalingConfig",
            "TrainRunContext",
            "ValidationConfig",
            "ValidationTaskConfig",
        ],
        "turnout.errors": [
            "CheckpointCorruptError",
            "CheckpointError",
            "CheckpointNotCommittedError",
            "CheckpointNotFoundError",
            "ControllerError",
            "DataError",
            "MissingDependencyError",
            "PreemptionError",
            "ResourceError",
            "StorageError",
            "TrainingFailedError",
            "TurnoutError",
            "UnsupportedError",
            "UsageError",
            "WorkerGroupError",
        ],
        "turnout.result": ["Result"],
        "turnout.session.context": ["TrainContext"],
        "turnout.session.functions": [
            "get_all_reported_checkpoints",
            "get_checkpoint",
            "get_context",
            "get_dataset_shard",
            "get_preemption_info",
            "report",
        ],
        "turnout.trainer.data_parallel": ["DataParallelTrainer"],
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


__version__ = "0.1.0"

__all__ = [
    "BackendConfig",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointNotCommittedError",
    "CheckpointNotFoundError",
    "CheckpointUploadMode",
    "ControllerError",
    "DataConfig",
    "DataError",
    "DataParallelTrainer",
    "FailureConfig",
    "LoggingConfig",
    "MissingDependencyError",
    "PreemptionError",
    "PreemptionInfo",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "ResourceError",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "StorageError",
    "TrainContext",
    "TrainRunContext",
    "TrainingFailedError",
    "TurnoutError",
    "UnsupportedError",
    "UsageError",
    "UserCallback",
    "ValidationConfig",
    "ValidationTaskConfig",
    "WorkerGroupError",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "report",
]

_logging.getLogger(__name__).addHandler(_logging.NullHandler())
