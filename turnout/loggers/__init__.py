"""Ready callbacks that show or keep what is reported."""

from turnout.loggers.progress import ProgressLogger

__all__ = ["ProgressLogger"]
