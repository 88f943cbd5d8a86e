"""`DataParallelTrainer`: from the user's arguments to a run on the track that they choose."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from turnout.checkpoint import Checkpoint
from turnout.checks import check_json, check_mapping, refused
from turnout.config import (
    BackendConfig,
    DataConfig,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
)
from turnout.controllers import registry
from turnout.controllers.base import Controller, RunSpec
from turnout.environment import TORCHRUN_VARIABLES, Overrides, is_under_torchrun, torchrun_variables
from turnout.errors import UnsupportedError, UsageError
from turnout.filesystem import redacted
from turnout.result import Result
from turnout.runtime.console import console_logging
from turnout.runtime.run import Run
from turnout.session import is_active_here
from turnout.trainer.train_fn import bind

__all__ = ["DataParallelTrainer"]

logger = logging.getLogger(__name__)

_DEFAULT_CONTROLLER = "ray"
_DEFAULT_STORAGE = "~/turnout_results"  # where the workers are other processes, nothing can be kept in memory


class DataParallelTrainer:
    """Runs one function on every worker, on the track that ``scaling_config`` chooses.

    Args:
        train_loop_per_worker: the train function: of no argument, or of one, the config.
        train_loop_config: the config; the function gets a copy.
        backend_config: which framework's process group is set up around it.
        scaling_config: how many workers; ``ScalingConfig(num_workers=0)`` trains in the current process.
        run_config: the run's name, storage, retries and callbacks.
        datasets: what `turnout.get_dataset_shard` gives, by name. A callable is called before the function starts.
        dataset_config: how they are dealt to ranks.
        validation_config: what ``report(..., validation=True)`` runs.
        metadata: kept with the run.
        resume_from_checkpoint: what `turnout.get_checkpoint` gives while the run has no checkpoint of its own.

    Raises:
        UsageError: an argument cannot be meant; nothing has run then.

    Example:
        >>> import turnout
        >>> def train(config):
        ...     for step in range(config["steps"]):
        ...         turnout.report({"loss": 1.0 / (step + 1)})
        >>> trainer = DataParallelTrainer(
        ...     train, train_loop_config={"steps": 4}, scaling_config=turnout.ScalingConfig(num_workers=0)
        ... )
        >>> trainer.fit().metrics
        {'loss': 0.25}
    """

    _trains_under_torchrun: ClassVar[bool] = False
    """Whether torchrun's processes train together: the framework's ranks can be started by it."""

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],  # Any: the user's own return value
        *,
        train_loop_config: Any = None,  # Any: the user's own
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,  # Any: data of the user's
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        metadata: dict[str, Any] | None = None,  # Any: the user's own
        resume_from_checkpoint: Checkpoint | None = None,
    ) -> None:
        self._train_fn = bind(train_loop_per_worker, train_loop_config)
        self._train_loop_config = train_loop_config
        self._backend_config = _checked("backend_config", backend_config, BackendConfig)
        self._scaling_config = _checked("scaling_config", scaling_config, ScalingConfig) or ScalingConfig()
        self._run_config = _checked("run_config", run_config, RunConfig) or RunConfig()
        self._datasets = dict(datasets) if isinstance(datasets, Mapping) else datasets
        if self._datasets is not None:
            check_mapping("datasets", self._datasets, 'for example {"train": dataset}')
        self._dataset_config = _checked("dataset_config", dataset_config, DataConfig) or DataConfig()
        self._validation_config = _checked("validation_config", validation_config, ValidationConfig)
        if metadata is not None:
            check_json("metadata", metadata, "what is kept with the run")
        self._metadata = metadata
        self._resume_from_checkpoint = _checked("resume_from_checkpoint", resume_from_checkpoint, Checkpoint)
        if self._scaling_config.controller is not None:
            registry.find(self._scaling_config.controller)

    def fit(self) -> Result:
        """Train.

        Returns:
            What the run ended with.

        Raises:
            TrainingFailedError: training failed and no retry is left. If the train function raised, the error is an
                instance of that exception's class too, with its traceback.
            UsageError: called inside a train function, or an override in the environment cannot be meant.
        """
        if is_active_here():
            raise UsageError("fit() was called inside a train function; start the inner run from outside of it")
        with console_logging(self._run_config.logging_config), contextlib.closing(self._settled()) as controller:
            return Run(controller).execute()

    def _settled(self) -> Controller:
        """The controller of the run as it will be, with the environment's overrides; says on which track and why."""
        overrides = Overrides.read()
        scaling, run = self._scaling_config, self._run_config
        if overrides.num_workers is not None:
            scaling = dataclasses.replace(scaling, num_workers=overrides.num_workers, label_selector=None)
        if overrides.controller is not None:
            scaling = dataclasses.replace(scaling, controller=overrides.controller)
        if overrides.storage_path is not None:
            run = dataclasses.replace(run, storage_path=overrides.storage_path, storage_filesystem=None)
        is_local = scaling.num_workers == 0
        name = self._local_controller(run) if is_local else scaling.controller or _DEFAULT_CONTROLLER
        if not is_local and is_under_torchrun():
            raise UsageError(
                f"num_workers={scaling.num_workers!r} under torchrun: each of its {os.environ['WORLD_SIZE']} processes "
                "would start a group of its own. Pass ScalingConfig(num_workers=0) to train on torchrun's processes, "
                "or start the program with python"
            )
        is_named = run.name is not None
        run = dataclasses.replace(run, name=run.name or _new_name())
        controller_class = registry.find(name)
        if run.storage_path is None and controller_class.traits.isolates_workers:
            run = dataclasses.replace(run, storage_path=_DEFAULT_STORAGE)
        spec = RunSpec(
            run_id=os.urandom(8).hex(),
            train_fn=self._train_fn,
            train_loop_config=self._train_loop_config,
            scaling_config=scaling,
            run_config=run,
            controller=name,
            backend_config=self._backend_config,
            datasets=self._datasets or {},
            dataset_config=self._dataset_config,
            validation_config=self._validation_config,
            metadata=self._metadata or {},
            is_named=is_named,
            resume_from_checkpoint=self._resume_from_checkpoint,
        )
        controller = controller_class(spec)
        if controller.drivers.rank != 0:
            return controller
        place = "in memory" if run.storage_path is None else f"stored in {redacted(run.storage_path)}"
        logger.info(
            "run %r trains %s (%s), %s, because %s",
            controller.spec.name,
            _where(scaling, controller),
            controller_class.__name__,
            place,
            _reason(scaling, self._run_config, overrides),
        )
        return controller

    def _local_controller(self, run: RunConfig) -> str:
        """The controller for ``num_workers=0``."""
        found = torchrun_variables()
        if not is_under_torchrun():
            _warn_of_missing(found)
        elif self._trains_under_torchrun:
            return "torchrun"
        elif run.storage_path is not None:
            raise UnsupportedError(
                f"{type(self).__name__} under torchrun, with a storage path: every process would train alone and write "
                "the same run. TorchTrainer trains on torchrun's processes together"
            )
        else:
            logger.warning(
                "%s trains alone in each of torchrun's %s processes; TorchTrainer trains on them together",
                type(self).__name__,
                found["WORLD_SIZE"],
            )
        return "local"


def _where(scaling: ScalingConfig, controller: Controller) -> str:
    if controller.traits.runs_driver_per_rank:
        return f"on the {controller.drivers.world_size} processes that torchrun has started"
    return "in this process" if scaling.num_workers == 0 else f"on {scaling.num_workers} workers"


def _reason(scaling: ScalingConfig, run: RunConfig, overrides: Overrides) -> str:
    reasons = [f"num_workers={scaling.num_workers}"]
    if scaling.controller is not None:
        reasons.append(f"controller={scaling.controller!r}" + " (not used)" * (scaling.num_workers == 0))
    if run.storage_path is not None:
        reasons.append("storage_path is set")
    for variable, value in (
        ("TURNOUT_NUM_WORKERS", overrides.num_workers),
        ("TURNOUT_CONTROLLER", overrides.controller),
        ("TURNOUT_STORAGE_PATH", overrides.storage_path),
    ):
        if value is not None:
            reasons.append(f"{variable}={redacted(value)} overrides the argument")
    return ", ".join(reasons)


def _warn_of_missing(found: Mapping[str, str]) -> None:
    if found:
        logger.warning(
            "some of torchrun's variables are set (%s) and some are not (%s): this is taken for a process that "
            "torchrun has not started, and trains alone",
            ", ".join(found),
            ", ".join(name for name in TORCHRUN_VARIABLES if name not in found),
        )


def _new_name() -> str:
    return f"turnout-{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.urandom(3).hex()}"


def _checked(name: str, value: Any, expected: type) -> Any:
    if value is not None and not isinstance(value, expected):
        raise refused(name, value, f"takes a turnout.{expected.__name__}")
    return value
