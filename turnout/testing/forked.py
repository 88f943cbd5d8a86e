"""A controller that forks ranks for the tools of this room, which are not runs of a trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnout.config import BackendConfig, RunConfig, ScalingConfig
from turnout.controllers import RunSpec
from turnout.controllers.process import ProcessController

__all__ = ["forking"]


def forking(
    name: str, function: Callable[..., Any], world_size: int, backend_config: BackendConfig | None = None
) -> ProcessController:
    """A controller of so many ranks.

    Args:
        name: of what they run.
        function: the user's own of it, which is taken along by value.
        world_size: how many there are.
        backend_config: of the process group on them; the server that forks them imports what it needs.
    """
    return ProcessController(
        RunSpec(
            run_id=name,
            train_fn=function,
            scaling_config=ScalingConfig(num_workers=world_size, controller="process"),
            run_config=RunConfig(name=name),
            controller="process",
            backend_config=backend_config,
        )
    )
