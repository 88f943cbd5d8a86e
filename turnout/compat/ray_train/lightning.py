"""The names of `ray.train.lightning`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnout import lightning
from turnout.errors import UnsupportedError
from turnout.lightning import prepare_trainer

__all__ = [
    "RayDDPStrategy",
    "RayDeepSpeedStrategy",
    "RayFSDPStrategy",
    "RayLightningEnvironment",
    "RayTrainReportCallback",
    "prepare_trainer",
]

if TYPE_CHECKING:
    RayDDPStrategy: Any  # Any: the bases of all four are the user's package's
    RayFSDPStrategy: Any
    RayLightningEnvironment: Any
    RayTrainReportCallback: Any
else:
    # Which classes they are depends on which of Lightning's two packages the program has imported by then.
    _OURS = {
        "RayDDPStrategy": "DDPStrategy",
        "RayFSDPStrategy": "FSDPStrategy",
        "RayLightningEnvironment": "LightningEnvironment",
        "RayTrainReportCallback": "ReportCallback",
    }

    def __getattr__(name: str) -> Any:
        if name in _OURS:
            return getattr(lightning, _OURS[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class RayDeepSpeedStrategy:
    """Refused: Turnout has no strategy for DeepSpeed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: refused whatever it is
        raise UnsupportedError(
            "RayDeepSpeedStrategy: Turnout has no strategy for DeepSpeed; RayFSDPStrategy shards parameters, gradients "
            "and the optimizer's state over the workers"
        )
