"""Named points at which a test may make the program fail; they cost next to nothing while none is armed.

The lowest layer: code calls `failpoint` where a crash would matter, and `turnout.testing.faults` decides what happens
there. Nothing here is armed by an import or by the environment.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["arm", "failpoint", "failpoint_data"]

Hook = Callable[[str, "int | None", "bytes | None"], "bytes | None"]

# One holder for the process, as faults strike whichever thread comes by; set by `arm` alone.
_hook: Hook | None = None


def failpoint(name: str, rank: int | None = None) -> None:
    """Stand at the point ``name``: nothing happens unless a fault is armed for it.

    Args:
        name: dotted, the room's part first: ``"commit.before_record"``.
        rank: the world rank that stands here, where it is known, so that a fault can strike one rank alone.
    """
    if _hook is not None:
        _hook(name, rank, None)


def failpoint_data(name: str, data: bytes, rank: int | None = None) -> bytes:
    """Stand at a point that is about to write ``data``; returns what is to be written, which a fault may cut short."""
    if _hook is None:
        return data
    changed = _hook(name, rank, data)
    return data if changed is None else changed


def arm(hook: Hook | None) -> Hook | None:
    """Put ``hook`` behind all points, in place of the one that is returned; None disarms."""
    global _hook
    previous, _hook = _hook, hook
    return previous
