"""The driver's side, once for every track: the attempt loop, merging of reports, retries and callbacks."""

from turnout.runtime.console import console_logging
from turnout.runtime.run import Run

__all__ = ["Run", "console_logging"]
