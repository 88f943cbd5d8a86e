"""The checkpoint classes of frameworks, which Ray Train has given up: whatever is done with one is refused."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from turnout.checkpoint import Checkpoint
from turnout.compat.ray_train.errors import DeprecatedError

__all__ = ["FrameworkCheckpoint"]


class FrameworkCheckpoint(Checkpoint):
    """The base of all.

    Raises:
        DeprecatedError: always; the text says what to do.
    """

    __slots__ = ()

    saved: ClassVar[str]
    """The call that writes a model's file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: refused whatever it is
        self._refuse()

    @classmethod
    def _refuse(cls, *args: Any, **kwargs: Any) -> NoReturn:  # Any: as above
        raise DeprecatedError(
            f"{cls.__name__}: Ray Train has given it up: write the model's file with {cls.saved} into a folder of its "
            "own, and report Checkpoint.from_directory(folder)"
        )

    from_state_dict = from_model = from_h5 = from_saved_model = _refuse
