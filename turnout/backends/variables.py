"""Environment variables that stand for the length of a run, and are as before afterwards."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["LentVariables"]


class LentVariables:
    """What a backend sets in the environment, and what stood there before."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def set(self, variables: Mapping[str, str]) -> None:
        """Set them."""
        for name, value in variables.items():
            self._before.setdefault(name, os.environ.get(name))
            os.environ[name] = value

    def put_back(self) -> None:
        """Have all be as before; can be done twice."""
        while self._before:
            name, value = self._before.popitem()
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
