"""What is raised for names of Ray Train that have no meaning here, and an error of its that is never raised."""

from __future__ import annotations

from typing import Any

from turnout.errors import UnsupportedError, WorkerGroupError

__all__ = ["DeprecatedError", "NCCLHangError", "NotOfferedError", "refuse"]


class DeprecatedError(UnsupportedError, DeprecationWarning):
    """A name that Ray Train has given up; raised where it raises a ``DeprecationWarning``."""


class NotOfferedError(UnsupportedError, ImportError):
    """A module of Ray's that cannot be imported while `ray.train` is Turnout."""


class NCCLHangError(WorkerGroupError):
    """Never raised: ranks that hang are found by `RunConfig.stall_timeout_s`, whatever they wait in."""


def refuse(reason: str, **values: Any) -> None:  # Any: what is given
    """Refuse arguments that Ray Train has given up.

    Args:
        reason: what is said after the argument's name.
        values: arguments by name; None is not given.

    Raises:
        DeprecatedError: one is given.
    """
    for name, value in values.items():
        if value is not None:
            raise DeprecatedError(f"{name}={value!r}: {reason}")
