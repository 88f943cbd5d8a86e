"""Modules that each process of a run's workers imports before it is sent anything of the user's.

For what changes how the user's own code is imported, such as an import hook: it must stand before the train function is
unpickled, as that imports the modules that the function refers to.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

__all__ = ["first_imports", "import_all", "import_first"]

_first: list[str] = []


def import_first(module: str) -> None:
    """Have every worker that this process starts from now on import ``module`` first; for good."""
    if module not in _first:
        _first.append(module)


def first_imports() -> list[str]:
    """What workers import first, in order."""
    return list(_first)


def import_all(modules: Iterable[str]) -> None:
    """Import them, on a worker; what one raises ends it, as code would not mean there what it means on the driver."""
    for module in modules:
        importlib.import_module(module)
