"""How a worker has ended, from what Ray says of it and what it has said itself."""

from __future__ import annotations

import re

from turnout.cluster.seats import Whereabouts
from turnout.combined_error import text_of
from turnout.controllers.stacks import where_of

__all__ = ["cause_of", "has_gone_with_node", "stays", "told_of"]

# Stands in every text of Ray's about an actor's death, and says nothing.
_EMPTY = ("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:", "The actor died unexpectedly before")
_ADVICE = "Some common causes include:"
_CRASH = re.compile(r"Fatal Python error: (?P<what>.*)")
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
}


def told_of(error: BaseException | None, place: Whereabouts, last_words: str) -> str:
    """How a rank that has died has, in words that follow its name.

    Args:
        error: that its call has failed with; None if it has returned.
        place: where it was.
        last_words: what `faulthandler` has written, if it has.
    """
    where = f"(pid {place.pid} on node {place.address})"
    if error is None:
        return f"{where} has ended without a word"
    from ray.exceptions import ActorUnavailableError, RayTaskError

    detail = cause_of(error)
    if isinstance(error, RayTaskError):
        return f"{where} has ended in an error of Turnout's: {detail}"
    if (crash := _CRASH.search(last_words)) is not None:
        name = _SIGNALS.get(crash["what"], crash["what"])
        at = where_of(last_words)
        return f"{where} was killed by {name}" + (f"; it {at.what.replace('is in', 'was in')}" if at.line else "")
    if "OUT_OF_MEMORY" in detail or "running low on memory" in detail:
        return f"{where} was killed, as its node ran out of memory. Ray says: {detail}"
    if isinstance(error, ActorUnavailableError):
        return f"{where} is lost, maybe with its node, as Ray does not know how it has ended. Ray says: {detail}"
    if "node" in detail.partition(".")[0]:
        return f"{where} is lost with its node. Ray says: {detail}"
    return f"{where} was killed, as by SIGKILL (out of memory?), or has left by os._exit. Ray says: {detail}"


def stays(error: BaseException) -> bool:
    """Whether what has kept a worker from starting is to be expected of the next one: of its surroundings or its class.

    Ray has then tried itself as often as it does.
    """
    from ray.exceptions import RayActorError, RuntimeEnvSetupError

    return isinstance(error, RuntimeEnvSetupError) or (isinstance(error, RayActorError) and error.actor_init_failed)


def has_gone_with_node(error: BaseException | None) -> bool:
    """Whether Ray says that an actor has died with a node which it was told would be taken away."""
    from ray.exceptions import RayActorError

    return isinstance(error, RayActorError) and bool(error.preempted)


def cause_of(error: BaseException | None) -> str:
    """What Ray says of an end on one line, without what it says of every one and without its own stack."""
    if error is None:
        return "it has returned"
    lines = [line.strip() for line in text_of(error).partition(_ADVICE)[0].splitlines()]
    kept = [line for line in lines if line and not line.startswith(_EMPTY)]
    first_of_stack = next((number for number, line in enumerate(kept) if "Traceback (most recent" in line), None)
    if first_of_stack is not None:
        kept = [*kept[:first_of_stack], kept[-1]]
    return " ".join(kept)
