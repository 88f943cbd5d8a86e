"""`DataParallelTrainer` as Ray Train's users call it; those of the frameworks derive from it too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from turnout.checkpoint import Checkpoint
from turnout.compat.ray_train import config
from turnout.compat.ray_train.errors import DeprecatedError, refuse
from turnout.config import BackendConfig, DataConfig, RunConfig, ScalingConfig, ValidationConfig
from turnout.errors import UnsupportedError
from turnout.trainer import data_parallel

__all__ = ["DataParallelTrainer"]


class DataParallelTrainer(data_parallel.DataParallelTrainer):
    """`turnout.DataParallelTrainer`, which refuses what Ray Train's does."""

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
        resume_from_checkpoint: Checkpoint | None = None,
        metadata: dict[str, Any] | None = None,  # Any: the user's own
        validation_config: ValidationConfig | None = None,
    ) -> None:
        name = type(self).__name__
        refuse(
            f"{name} of Ray Train has given it up. The same RunConfig(name=..., storage_path=...) resumes a run; else "
            "pass the checkpoint in train_loop_config. turnout's own trainers do take it",
            resume_from_checkpoint=resume_from_checkpoint,
        )
        refuse(
            f"{name} of Ray Train has given it up: pass it in train_loop_config. turnout's own trainers do take it",
            metadata=metadata,
        )
        if hasattr(type(backend_config), "backend_cls"):
            raise UnsupportedError(
                f"{name}(backend_config={backend_config!r}): it is written for Ray Train's worker group. Turnout's "
                "backends start on the ranks themselves: derive from turnout.backends.base.Backend, and name the class "
                "in BackendConfig.backend_class"
            )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=backend_config,
            scaling_config=scaling_config or config.ScalingConfig(),
            run_config=run_config or config.RunConfig(),
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
        )
        self.train_loop_per_worker = train_loop_per_worker

    @property
    def train_loop_config(self) -> Any:  # Any: the user's own
        """As it was given."""
        return self._train_loop_config

    @property
    def backend_config(self) -> BackendConfig:
        """As it was given, or the framework's."""
        return self._backend_config or BackendConfig()

    @property
    def scaling_config(self) -> ScalingConfig:
        """As it was given."""
        return self._scaling_config

    @property
    def run_config(self) -> RunConfig:
        """As it was given; a name and a storage path that are left open are chosen by `fit`."""
        return self._run_config

    @property
    def datasets(self) -> dict[str, Any]:  # Any: data of the user's
        """As they were given."""
        return dict(self._datasets or {})

    @property
    def data_config(self) -> DataConfig:
        """As it was given."""
        return self._dataset_config

    @property
    def validation_config(self) -> ValidationConfig | None:
        """As it was given."""
        given: ValidationConfig | None = self._validation_config
        return given

    @classmethod
    def restore(cls, *args: Any, **kwargs: Any) -> NoReturn:  # Any: refused whatever it is
        """Refused: a run is resumed by building its trainer again."""
        raise _restored(cls, "restore")

    @classmethod
    def can_restore(cls, *args: Any, **kwargs: Any) -> NoReturn:  # Any: as above
        """Refused: a run is resumed by building its trainer again."""
        raise _restored(cls, "can_restore")


def _restored(trainer: type, method: str) -> DeprecatedError:
    return DeprecatedError(
        f"{trainer.__name__}.{method}(): Ray Train has given it up. Build the trainer again, with the same "
        "RunConfig(name=..., storage_path=...): get_checkpoint() is then the run's newest"
    )
