"""The configurations that Ray Train's users write: Turnout's, with the arguments in Ray Train's order.

What Turnout has beyond follows by keyword. The objects are Turnout's own, so they do not change once they are built:
`dataclasses.replace` makes another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turnout import config
from turnout.callback import UserCallback
from turnout.checkpoint import Checkpoint
from turnout.compat.ray_train.errors import DeprecatedError
from turnout.config import LoggingConfig
from turnout.errors import UnsupportedError

__all__ = [
    "TRAIN_DATASET_KEY",
    "CheckpointConfig",
    "DataConfig",
    "FailureConfig",
    "RunConfig",
    "ScalingConfig",
    "SyncConfig",
    "ValidationFn",
]

TRAIN_DATASET_KEY = "train"

_DEPRECATED: Any = "DEPRECATED"  # Any: Ray Train's default for what it has given up, whatever that once took


class ScalingConfig(config.ScalingConfig):
    """`turnout.ScalingConfig`, called as Ray Train's."""

    __slots__ = ()

    def __init__(
        self,
        trainer_resources: dict[str, float] | None = None,
        num_workers: int | tuple[int, int] = 1,
        use_gpu: bool = False,
        resources_per_worker: Mapping[str, float] | None = None,
        placement_strategy: str = "PACK",
        accelerator_type: str | None = None,
        label_selector: dict[str, str] | list[dict[str, str]] | None = None,
        use_tpu: bool = False,
        topology: str | None = None,
        elastic_resize_monitor_interval_s: float = 60.0,
        *,
        controller: str | None = None,
    ) -> None:
        if trainer_resources is not None:
            raise DeprecatedError(
                f"ScalingConfig(trainer_resources={trainer_resources!r}): the driver program runs the trainer here, "
                "and reserves nothing; leave it out"
            )
        super().__init__(
            num_workers=num_workers,
            use_gpu=use_gpu,
            resources_per_worker=resources_per_worker,
            placement_strategy=placement_strategy,
            accelerator_type=accelerator_type,
            label_selector=label_selector,
            controller=controller,
            use_tpu=use_tpu,
            topology=topology,
            elastic_resize_monitor_interval_s=elastic_resize_monitor_interval_s,
        )

    @property
    def trainer_resources(self) -> None:
        """None: the driver program runs the trainer."""

    @property
    def elasticity_enabled(self) -> bool:
        """Whether ``num_workers`` is a range."""
        return isinstance(self.num_workers, tuple)

    @property
    def total_resources(self) -> dict[str, float]:
        """What all workers together take, of an elastic run at most."""
        return {name: amount * self.max_workers for name, amount in self._of_each.items()}

    @property
    def num_cpus_per_worker(self) -> float:
        """CPUs that each worker takes."""
        return self._of_each.get("CPU", 0)

    @property
    def num_gpus_per_worker(self) -> float:
        """GPUs that each worker takes."""
        return self._of_each.get("GPU", 0)

    @property
    def num_tpus_per_worker(self) -> float:
        """0: Turnout drives CPUs and GPUs."""
        return 0

    @property
    def additional_resources_per_worker(self) -> dict[str, float]:
        """What each worker takes besides CPUs and GPUs."""
        return {name: amount for name, amount in self._of_each.items() if name not in ("CPU", "GPU")}

    @property
    def _of_each(self) -> dict[str, float]:
        given = {name: amount for name, amount in (self.resources_per_worker or {}).items() if amount}
        if self.use_gpu:
            return {"GPU": 1, **given}
        return given if self.resources_per_worker is not None else {"CPU": 1}


class FailureConfig(config.FailureConfig):
    """`turnout.FailureConfig`, called as Ray Train's."""

    __slots__ = ()

    def __init__(
        self,
        max_failures: int = 0,
        fail_fast: Any = _DEPRECATED,  # Any: as above
        controller_failure_limit: int = -1,
        max_preemption_failures: int = -1,
        relax_collectives_on_preemption: bool = False,
        preemption_grace_s: float = 0.0,
    ) -> None:
        if fail_fast != _DEPRECATED:
            raise DeprecatedError(
                f"FailureConfig(fail_fast={fail_fast!r}): is for several trials of Ray Tune; a run that is not to be "
                "tried again has max_failures=0"
            )
        super().__init__(
            max_failures=max_failures,
            controller_failure_limit=controller_failure_limit,
            max_preemption_failures=max_preemption_failures,
            preemption_grace_s=preemption_grace_s,
            relax_collectives_on_preemption=relax_collectives_on_preemption,
        )


class CheckpointConfig(config.CheckpointConfig):
    """`turnout.CheckpointConfig`, called as Ray Train's."""

    __slots__ = ()

    def __init__(
        self,
        num_to_keep: int | None = None,
        checkpoint_score_attribute: str | None = None,
        checkpoint_score_order: str = "max",
        checkpoint_frequency: Any = _DEPRECATED,  # Any: as above
        checkpoint_at_end: Any = _DEPRECATED,
        *,
        verify: str = "auto",
        max_pending_uploads: int = 1,
        drain_timeout_s: float = 60.0,
    ) -> None:
        for name, value in (("checkpoint_frequency", checkpoint_frequency), ("checkpoint_at_end", checkpoint_at_end)):
            if value != _DEPRECATED:
                raise DeprecatedError(
                    f"CheckpointConfig({name}={value!r}): the train function decides when it reports a checkpoint; "
                    "leave it out"
                )
        super().__init__(
            num_to_keep=num_to_keep,
            checkpoint_score_attribute=checkpoint_score_attribute,
            checkpoint_score_order=checkpoint_score_order,
            verify=verify,
            max_pending_uploads=max_pending_uploads,
            drain_timeout_s=drain_timeout_s,
        )


class RunConfig(config.RunConfig):
    """`turnout.RunConfig`, called as Ray Train's; the configurations of failures and checkpoints are always there."""

    __slots__ = ()

    def __init__(
        self,
        name: str | None = None,
        storage_path: str | os.PathLike[str] | None = None,
        storage_filesystem: Any = None,  # Any: pyarrow's or fsspec's
        failure_config: config.FailureConfig | None = None,
        checkpoint_config: config.CheckpointConfig | None = None,
        callbacks: Sequence[UserCallback] | None = None,
        worker_runtime_env: dict[str, Any] | None = None,  # Any: Ray's own format
        logging_config: LoggingConfig | None = None,
        sync_config: Any = _DEPRECATED,  # Any: as above
        verbose: Any = _DEPRECATED,
        stop: Any = _DEPRECATED,
        progress_reporter: Any = _DEPRECATED,
        log_to_file: Any = _DEPRECATED,
        *,
        on_existing: str = "resume",
        start_timeout_s: float | None = None,
        stall_timeout_s: float = 300.0,
        stall_action: str = "warn",
    ) -> None:
        given_up = {
            "sync_config": sync_config,
            "verbose": verbose,
            "stop": stop,
            "progress_reporter": progress_reporter,
            "log_to_file": log_to_file,
        }
        for argument, value in given_up.items():
            if value != _DEPRECATED:
                raise DeprecatedError(
                    f"RunConfig({argument}={value!r}): belongs to Ray Tune, and Ray Train has given it up; leave it out"
                )
        super().__init__(
            name=name,
            storage_path=storage_path,
            storage_filesystem=storage_filesystem,
            failure_config=failure_config or FailureConfig(),
            checkpoint_config=checkpoint_config or CheckpointConfig(),
            callbacks=callbacks,
            worker_runtime_env=worker_runtime_env,
            logging_config=logging_config,
            on_existing=on_existing,
            start_timeout_s=start_timeout_s,
            stall_timeout_s=stall_timeout_s,
            stall_action=stall_action,
        )


class DataConfig(config.DataConfig):
    """`turnout.DataConfig`, called as Ray Train's.

    A class derived from it with a ``configure`` of its own is refused: on no track would it be called.
    """

    __slots__ = ()

    def __init__(
        self,
        datasets_to_split: str | list[str] = "all",
        execution_options: Any = None,  # Any: a type of Ray Data's
        enable_shard_locality: bool = True,
        *,
        equal: bool = True,
    ) -> None:
        super().__init__(
            datasets_to_split=datasets_to_split,
            execution_options=execution_options,
            enable_shard_locality=enable_shard_locality,
            equal=equal,
        )

    def __init_subclass__(cls, **arguments: Any) -> None:  # Any: as Python passes them
        super().__init_subclass__(**arguments)
        if "configure" in vars(cls):
            raise UnsupportedError(
                f"{cls.__qualname__}.configure(): Turnout deals data sets itself, and would not call it. Leave a data "
                "set out of datasets_to_split to have it whole on every rank, and cut it there"
            )

    @staticmethod
    def default_ingest_options() -> Any:  # Any: Ray Data has no types
        """The options that Ray Data reads with where none are given: a copy of the current context's."""
        import copy

        from ray.data import DataContext

        return copy.deepcopy(DataContext.get_current().execution_options)


@dataclass
class SyncConfig:
    """An argument of Ray Tune's; nothing here takes it."""

    sync_period: int = 300
    sync_timeout: int = 1800
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True


class ValidationFn(Protocol):
    """What `ValidationConfig.fn` is: given a checkpoint, it returns metrics."""

    def __call__(self, checkpoint: Checkpoint, **kwargs: Any) -> dict[str, Any]:
        """Return the metrics that are merged into the checkpoint's."""
