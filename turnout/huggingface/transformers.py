"""What a user of Hugging Face's Transformers imports: `prepare_trainer`, and a callback that reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnout.integrations.transformers import prepare_trainer, report_callback

__all__ = ["ReportCallback", "prepare_trainer"]

if TYPE_CHECKING:
    ReportCallback: Any  # Any: its base is Transformers', which is imported when it is used
else:

    def __getattr__(name: str) -> Any:
        if name == "ReportCallback":
            return report_callback()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
