"""Which session is active: a context variable, with a process-wide fallback for threads that the user starts.

The context variable lets several runs train in one process, each on a thread of its own; a thread that a train
function starts has an empty context, and falls back to the one session that the process has.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal

from turnout.errors import UsageError

if TYPE_CHECKING:
    from turnout.session.train_fn_utils import TrainFnUtils

__all__ = ["activated", "active", "get_here", "is_active_here", "of_process", "outside"]

# None: nothing is said here, ask the fallback. False: this code is outside every session, whatever the fallback says.
_here: ContextVar[TrainFnUtils | Literal[False] | None] = ContextVar("turnout_session", default=None)
_sessions: list[TrainFnUtils] = []
_is_fork_aware = False
get_here = _here.get
"""What the context variable says: a session, or False or None, for which `active` knows what follows."""


def active() -> TrainFnUtils:
    """The session that this code runs in.

    Raises:
        UsageError: there is none, or the process has several and this thread belongs to none of them.
    """
    utils = get_here()
    if utils and not utils.is_closed:
        return utils
    if utils:
        raise UsageError("the run that this code was started in has ended; no run is active here")
    if utils is None and len(_sessions) == 1:
        return _sessions[0]
    if utils is None and _sessions:
        raise UsageError(
            f"{len(_sessions)} runs train in this process at once, so a thread of one of them must say which it "
            "belongs to: start it with threading.Thread(target=contextvars.copy_context().run, args=(function,))"
        )
    raise UsageError(
        "turnout.report(), get_context() and their kin work only inside a train function that a trainer runs, such as "
        "TorchTrainer(fn, scaling_config=ScalingConfig(num_workers=0)).fit(); no run is active here"
    )


def is_active_here() -> bool:
    """Whether this very code, and not merely another thread of its process, runs in a session."""
    utils = get_here()
    return not utils.is_closed if utils else False


def of_process() -> tuple[TrainFnUtils, ...]:
    """All sessions of this process; none outlives its `fit()`."""
    return tuple(_sessions)


class activated:  # noqa: N801  # it reads as the function that it stands for
    """Make ``utils`` the session of the code in a block, and the fallback of this process's threads.

    It is no generator, since `contextlib` sets attributes of the exception that passes, which some classes refuse.

    Args:
        utils: the session; it is closed when the block ends.
    """

    def __init__(self, utils: TrainFnUtils) -> None:
        self._utils = utils

    def __enter__(self) -> None:
        global _is_fork_aware
        if not _is_fork_aware:
            os.register_at_fork(after_in_child=_tell_forked_child)
            _is_fork_aware = True
        self._token = _here.set(self._utils)
        _sessions.append(self._utils)

    def __exit__(self, *_: object) -> None:
        _sessions.remove(self._utils)
        _here.reset(self._token)
        self._utils.close()


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Take the session away from the code in the block: a callback runs beside the train function, not in it."""
    token = _here.set(False)
    try:
        yield
    finally:
        _here.reset(token)


def _tell_forked_child() -> None:
    for utils in _sessions:
        utils.become_forked_child()
