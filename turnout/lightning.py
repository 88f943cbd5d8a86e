"""What a user of Lightning imports: strategies on the ranks of a run, `prepare_trainer`, and a callback that reports.

The classes are those for the package that the program has imported, ``lightning`` or ``pytorch_lightning``; where it is
both, `classes_for` gives those for either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnout.integrations.lightning import LightningClasses, classes_for, classes_of_imported, prepare_trainer

__all__ = [
    "DDPStrategy",
    "FSDPStrategy",
    "LightningClasses",
    "LightningEnvironment",
    "ReportCallback",
    "classes_for",
    "prepare_trainer",
]

if TYPE_CHECKING:
    DDPStrategy: Any  # Any: the bases of all four are the user's package's
    FSDPStrategy: Any
    LightningEnvironment: Any
    ReportCallback: Any
else:

    def __getattr__(name: str) -> Any:
        if name in __all__:
            return getattr(classes_of_imported(), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
