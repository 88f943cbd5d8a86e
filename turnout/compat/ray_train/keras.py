"""The names of `ray.train.tensorflow.keras`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.tensorflow import ReportCallback as ReportCheckpointCallback
else:

    def __getattr__(name: str) -> object:
        if name != "ReportCheckpointCallback":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from turnout.tensorflow import ReportCallback  # its base is Keras's, which takes seconds to import

        return ReportCallback


__all__ = ["ReportCheckpointCallback"]
