"""Imports a framework that is installed on demand; where it is missing or too old the error says what to install."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

from turnout.errors import MissingDependencyError

__all__ = ["imported"]


def imported(package: str, *, at_least: str, extra: str, needed_by: str) -> ModuleType:
    """The package, imported now.

    Args:
        package: its top-level module, which has a ``__version__``.
        at_least: the oldest version that will do.
        extra: of Turnout's, which brings it.
        needed_by: what needs it, for the error's text.

    Raises:
        MissingDependencyError: it is not installed, or too old.
    """
    install = f"pip install 'turnout[{extra}]'"
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is there, and broken
            raise
        raise MissingDependencyError(package, install, needed_by) from error
    if _numbers(module.__version__) < _numbers(at_least):
        upgrade = install.replace("install", "install --upgrade", 1)
        raise MissingDependencyError(package, upgrade, needed_by, at_least, module.__version__)
    return module


def _numbers(version: str) -> tuple[int, ...]:
    """The release's numbers; what follows them, as in ``2.16.0rc1+cpu``, does not count."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
