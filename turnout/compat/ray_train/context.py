"""`get_context` with what Ray Train's context has given up, each with its reason."""

from __future__ import annotations

from typing import NoReturn

from turnout.compat.ray_train.errors import DeprecatedError
from turnout.session import active, context

__all__ = ["TrainContext", "get_context"]


class TrainContext(context.TrainContext):
    """`turnout.TrainContext`, and the methods that Ray Train refuses."""

    __slots__ = ()

    def get_metadata(self) -> NoReturn:
        """Refused: hand metadata to the train function with its configuration."""
        raise _given_up("get_metadata", "pass what the train function needs in train_loop_config")

    def get_trial_name(self) -> NoReturn:
        """Refused: there is no trial of Ray Tune's."""
        raise _given_up("get_trial_name", "a run is no trial of Ray Tune's; get_experiment_name() is its name")

    def get_trial_id(self) -> NoReturn:
        """Refused: there is no trial of Ray Tune's."""
        raise _given_up("get_trial_id", "a run is no trial of Ray Tune's; get_experiment_name() is its name")

    def get_trial_resources(self) -> NoReturn:
        """Refused: there is no trial of Ray Tune's."""
        raise _given_up("get_trial_resources", "a run is no trial of Ray Tune's; the driver has its ScalingConfig")

    def get_trial_dir(self) -> NoReturn:
        """Refused: there is no trial of Ray Tune's."""
        raise _given_up("get_trial_dir", "a run is no trial of Ray Tune's; get_storage() knows its folder")


def get_context() -> TrainContext:
    """The run that this code trains in, and this worker's place in it."""
    own = active().context
    return TrainContext(run_name=own.get_experiment_name(), ranks=own._ranks, checkpoints=own._checkpoints)


def _given_up(method: str, remedy: str) -> DeprecatedError:
    return DeprecatedError(f"get_context().{method}(): Ray Train has given it up: {remedy}")
