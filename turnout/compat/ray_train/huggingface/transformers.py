"""The names of `ray.train.huggingface.transformers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnout.huggingface import transformers
from turnout.huggingface.transformers import prepare_trainer

__all__ = ["RayTrainReportCallback", "prepare_trainer"]

if TYPE_CHECKING:
    RayTrainReportCallback: Any  # Any: its base is Transformers', which is imported when it is used
else:

    def __getattr__(name: str) -> Any:
        if name == "RayTrainReportCallback":
            return transformers.ReportCallback
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
