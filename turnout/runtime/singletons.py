"""What libraries keep once for a whole process, of which a run leaves nothing to the program that it ran in."""

from __future__ import annotations

import sys

__all__ = ["accelerate_is_set_up", "forget_accelerate"]


def accelerate_is_set_up() -> bool:
    """Whether accelerate has settled in this process which ranks there are; nothing is imported to find out."""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.PartialState._shared_state)


def forget_accelerate() -> None:
    """Let accelerate settle anew, when it is next used, which ranks there are.

    Its states are one for the whole process, so that a second run, or the program after the run, would find the first
    run's ranks, process group and precision.
    """
    state = sys.modules.get("accelerate.state")
    if state is not None:
        for kept in (state.GradientState, state.AcceleratorState, state.PartialState):
            kept._reset_state()
