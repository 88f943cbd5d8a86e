"""What only Ray Train's `v2.api` modules name."""

from __future__ import annotations

from typing import Any

from turnout.callback import UserCallback
from turnout.compat.ray_train.context import TrainContext
from turnout.errors import UnsupportedError

__all__ = ["DistributedTrainContext", "LocalTrainContext", "RayTrainCallback", "TrainContext", "UserCallback"]

# One class on every track.
DistributedTrainContext = TrainContext
LocalTrainContext = TrainContext


class RayTrainCallback:
    """The base of Ray Train's inner callbacks; a class derived from it is refused, as nothing would call it."""

    def __init_subclass__(cls, **arguments: Any) -> None:  # Any: as Python passes them
        super().__init_subclass__(**arguments)
        raise UnsupportedError(
            f"{cls.__qualname__} derives from RayTrainCallback, whose hooks are those of Ray Train's own controller. "
            "Derive from ray.train.UserCallback, whose after_report and after_exception are called on every track"
        )
