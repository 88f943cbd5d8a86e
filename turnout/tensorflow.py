"""What a user of TensorFlow and Keras imports: `TensorflowTrainer`, and what its train function calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout.backends.tensorflow import TensorflowConfig
from turnout.integrations.tensorflow import prepare_dataset_shard
from turnout.trainer.tensorflow import TensorflowTrainer

if TYPE_CHECKING:
    from turnout.integrations.keras import ReportCallback
else:

    def __getattr__(name: str) -> object:
        # Its base class is Keras's, which takes seconds to import: only where it is used (PEP 562).
        if name != "ReportCallback":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from turnout.integrations.keras import ReportCallback

        globals()[name] = ReportCallback
        return ReportCallback


__all__ = ["ReportCallback", "TensorflowConfig", "TensorflowTrainer", "prepare_dataset_shard"]
