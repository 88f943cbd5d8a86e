"""The environment variables that Turnout reads: one table, and the only file that reads them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from turnout.errors import UsageError

__all__ = [
    "TORCHRUN_VARIABLES",
    "VARIABLES",
    "WORKER_VARIABLE",
    "EnvironmentVariable",
    "Overrides",
    "TorchrunVariables",
    "is_under_torchrun",
    "is_worker",
    "own_variables",
    "rank_of_environment",
    "ranks_of_environment",
    "torchrun_variables",
]


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
    EnvironmentVariable(
        name="TURNOUT_WORKER",
        kind="1",
        default="not set",
        meaning="Set by Turnout in the workers that it starts; torchrun's variables are not read there.",
    ),
)

# What Turnout sets itself for the workers that it starts, whose variables of torchrun's are not torchrun's.
WORKER_VARIABLE = "TURNOUT_WORKER"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunVariables:
    """What torchrun tells a process that it has started."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    max_restarts: int

    @classmethod
    def read(cls) -> TorchrunVariables | None:
        """Read them; None unless all six are set.

        Raises:
            UsageError: one cannot be meant.
        """
        if not is_under_torchrun():
            return None
        texts = torchrun_variables()
        size = _number("WORLD_SIZE", texts["WORLD_SIZE"], 1)
        local_size = _number("LOCAL_WORLD_SIZE", texts["LOCAL_WORLD_SIZE"], 1, size)
        return cls(
            rank=_number("RANK", texts["RANK"], 0, size - 1),
            local_rank=_number("LOCAL_RANK", texts["LOCAL_RANK"], 0, local_size - 1),
            world_size=size,
            local_world_size=local_size,
            master_addr=texts["MASTER_ADDR"],
            master_port=_number("MASTER_PORT", texts["MASTER_PORT"], 0, 65535),
            restart_count=_number("TORCHELASTIC_RESTART_COUNT", _text("TORCHELASTIC_RESTART_COUNT") or "0", 0),
            max_restarts=_number("TORCHELASTIC_MAX_RESTARTS", _text("TORCHELASTIC_MAX_RESTARTS") or "0", 0),
        )


def own_variables() -> dict[str, str]:
    """Those of Turnout's variables that are set, which a worker on another machine is to have too."""
    return {name: value for name, value in os.environ.items() if name.startswith("TURNOUT_")}


def is_worker() -> bool:
    """Whether Turnout has started this process itself, to be a rank."""
    return _text(WORKER_VARIABLE) is not None


def torchrun_variables() -> dict[str, str]:
    """Those of torchrun's six variables that are set; none in a worker that Turnout has started itself."""
    if is_worker():
        return {}
    return {name: os.environ[name] for name in TORCHRUN_VARIABLES if name in os.environ}


def is_under_torchrun() -> bool:
    """Whether torchrun has started this process: all six of its variables are set."""
    return len(torchrun_variables()) == len(TORCHRUN_VARIABLES)


def rank_of_environment() -> int:
    """What RANK says, whoever has set it; 0 where it is not set."""
    return _number("RANK", _text("RANK") or "0", 0)


def ranks_of_environment() -> tuple[int, int, int]:
    """World size, rank and local rank, as far as they are set: one process without them.

    Raises:
        UsageError: one cannot be meant.
    """
    size = _number("WORLD_SIZE", _text("WORLD_SIZE") or "1", 1)
    rank = _number("RANK", _text("RANK") or "0", 0, size - 1)
    return size, rank, _number("LOCAL_RANK", _text("LOCAL_RANK") or "0", 0)


def _number(name: str, text: str, least: int, most: int | None = None) -> int:
    is_number = text.isascii() and text.isdigit()
    if not is_number or int(text) < least or (most is not None and int(text) > most):
        allowed = f"at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(
            f"the environment variable {name} is {text!r}; under torchrun it is a whole number {allowed}. Start the "
            "program with torchrun, or unset RANK and WORLD_SIZE to train in this process"
        )
    return int(text)


def _text(name: str) -> str | None:
    """A variable's text without surrounding blanks; a variable that is set to nothing counts as not set."""
    return os.environ.get(name, "").strip() or None
