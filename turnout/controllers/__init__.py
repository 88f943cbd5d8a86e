"""Controllers: how workers are placed and their messages carried; `base` is the seam, the rest stands behind it."""

from turnout.controllers.base import Controller, Ending, Outcome, RunSpec, Sink, Traits, Worker
from turnout.controllers.registry import find, known, register

__all__ = ["Controller", "Ending", "Outcome", "RunSpec", "Sink", "Traits", "Worker", "find", "known", "register"]
