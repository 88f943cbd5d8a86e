"""How a worker has ended, from what Ray says of it."""

from __future__ import annotations

from turnout.cluster import Whereabouts
from turnout.combined_error import text_of

__all__ = ["cause_of", "told_of"]

_OF_RAY_ALONE = ("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:")
_ADVICE = "Some common causes include:"


def told_of(error: BaseException | None, place: Whereabouts) -> str:
    """How a rank that has died has, in words that follow its name.

    Args:
        error: that its call has failed with; None if it has returned.
        place: where it was.
    """
    where = f"(pid {place.pid} on node {place.address})"
    if error is None:
        return f"{where} has ended without a word"
    from ray.exceptions import RayActorError, RayTaskError

    detail = cause_of(error)
    if isinstance(error, RayTaskError):
        return f"{where} has ended in an error of Turnout's: {detail}"
    if "OUT_OF_MEMORY" in detail or "memory monitor" in detail:
        how = "was killed as its node ran out of memory"
    elif isinstance(error, RayActorError) and "node" in detail and "died" in detail.partition(".")[0]:
        how = "is lost with its node"
    else:
        how = "was killed, or has left by os._exit"
    return f"{where} {how}. Ray says: {detail}"


def cause_of(error: BaseException | None) -> str:
    """What Ray says of an end, without what it says of every one."""
    if error is None:
        return "it has returned"
    lines = [line.strip() for line in text_of(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_OF_RAY_ALONE)]
    return "\n".join(kept).partition(_ADVICE)[0].strip()
