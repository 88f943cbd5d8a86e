"""The environment variables that Turnout reads: one table, and the only file that reads them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from turnout.errors import UsageError

__all__ = ["TORCHRUN_VARIABLES", "VARIABLES", "EnvironmentVariable", "Overrides", "torchrun_variables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentVariable:
    """One row of the table.

    Args:
        name: as it stands in the environment.
        kind: how its text is read.
        default: what holds where it is not set.
        meaning: what it does, in one sentence.
    """

    name: str
    kind: str
    default: str
    meaning: str


VARIABLES = (
    EnvironmentVariable(
        name="TURNOUT_NUM_WORKERS",
        kind="int >= 0",
        default="not set",
        meaning="Overrides ScalingConfig.num_workers, so that one script moves between tracks without an edit.",
    ),
    EnvironmentVariable(
        name="TURNOUT_CONTROLLER",
        kind="name",
        default="not set",
        meaning="Overrides ScalingConfig.controller.",
    ),
    EnvironmentVariable(
        name="TURNOUT_STORAGE_PATH",
        kind="path or URI",
        default="not set",
        meaning="Overrides RunConfig.storage_path.",
    ),
)

# What torchrun sets for each process that it starts (torch.distributed.run, "Environment Variables").
TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the environment says over the arguments; None where it says nothing.

    These three variables alone beat an argument; everywhere else an argument beats the environment.
    """

    num_workers: int | None = None
    controller: str | None = None
    storage_path: str | None = None

    @classmethod
    def read(cls) -> Overrides:
        """Read the three ``TURNOUT_*`` overrides.

        Raises:
            UsageError: ``TURNOUT_NUM_WORKERS`` is no whole number of at least 0.
        """
        text = _text("TURNOUT_NUM_WORKERS")
        if text is not None and not (text.isascii() and text.isdigit()):
            raise UsageError(
                f"the environment variable TURNOUT_NUM_WORKERS is {text!r}; "
                "it takes a whole number: 0 trains in this process. Correct it, or unset it."
            )
        return cls(
            num_workers=None if text is None else int(text),
            controller=_text("TURNOUT_CONTROLLER"),
            storage_path=_text("TURNOUT_STORAGE_PATH"),
        )


def torchrun_variables() -> dict[str, str]:
    """Those of torchrun's six variables that are set."""
    return {name: os.environ[name] for name in TORCHRUN_VARIABLES if name in os.environ}


def _text(name: str) -> str | None:
    """A variable's text without surrounding blanks; a variable that is set to nothing counts as not set."""
    return os.environ.get(name, "").strip() or None
