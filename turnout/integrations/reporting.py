"""What the callbacks of frameworks check of the arguments that they pass on to `turnout.report`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from turnout.checks import refused
from turnout.config import CheckpointUploadMode, ValidationTaskConfig

__all__ = ["check_report_arguments"]


def check_report_arguments(mode: Any, validation: Any, modes: Collection[CheckpointUploadMode]) -> None:
    """Refuse arguments of a ``ReportCallback`` that cannot be meant; Any: they are what it checks.

    Args:
        mode: how a checkpoint's files are handed over.
        validation: what is run on it.
        modes: those that the framework's checkpoints can be handed over in.
    """
    if not isinstance(mode, CheckpointUploadMode) or mode not in modes:
        names = ", ".join(each.name for each in modes)
        raise refused(
            "ReportCallback(): checkpoint_upload_mode", mode, f"takes a turnout.CheckpointUploadMode: {names}"
        )
    if not isinstance(validation, (bool, ValidationTaskConfig)):
        remedy = "takes True, False or a turnout.ValidationTaskConfig"
        raise refused("ReportCallback(): validation", validation, remedy)
