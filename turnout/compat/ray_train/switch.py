"""The switch: once `install` is called, ``import ray.train`` finds Turnout, here and in every worker of a run.

It is a finder at the head of ``sys.meta_path``, which answers for the modules of the table in `names.py` alone and
loads nothing before one of them is imported. Each of these is an empty shell that asks Turnout's module for its names,
and whose ``__path__`` is the real package's, so that what the table leaves out is found where it lies.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from turnout.compat.ray_train.names import MODULES, REFUSED, Source
from turnout.errors import UsageError
from turnout.first_imports import import_first

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importing it would be most of what the switch costs

__all__ = ["install"]

logger = logging.getLogger(__name__)

_WORKERS_SWITCH = f"{__name__.rpartition('.')[0]}._installed"


def install() -> None:
    """Have `ray.train` and its public submodules be Turnout from here on, in this process and in workers; for good.

    Call it before anything imports `ray.train`: at the head of a program, or of a ``conftest.py``. A second call does
    nothing.

    Raises:
        UsageError: `ray.train` is imported already, `ray.tune` is in use, or the environment asks for Ray Train's first
            version.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if os.environ.get("RAY_TRAIN_V2_ENABLED", "1").lower() in ("0", "false"):
        raise UsageError(
            "the environment variable RAY_TRAIN_V2_ENABLED asks for Ray Train's first version; Turnout has the names "
            "of its second. Unset it, and see what of the program is of the first"
        )
    if "ray.tune" in sys.modules:
        raise UsageError(f"ray.tune is in use, so ray.train cannot be Turnout: {REFUSED['ray.tune']}")
    loaded = sorted(name for name in sys.modules if name in MODULES)
    if loaded:
        raise UsageError(
            f"{loaded[0]} is imported already, and what has its names would keep Ray Train's: call "
            "turnout.compat.ray_train.install() first, or start the program with python -m turnout.compat.ray_train"
        )
    sys.meta_path.insert(0, _Finder())
    import_first(_WORKERS_SWITCH)
    logger.info("ray.train is Turnout in this process and in the workers of its runs")


class _Finder:
    """Finds the modules of the table; has those that are refused raise when they are run, as looking is allowed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in REFUSED:
            return ModuleSpec(fullname, _Refusal(REFUSED[fullname]))
        source = MODULES.get(fullname)
        if source is None:
            return None
        real = self._real(fullname, path, target)
        spec = ModuleSpec(fullname, _Shell(source), origin=source.module)
        if real is not None and real.submodule_search_locations is not None:
            spec.submodule_search_locations = list(real.submodule_search_locations)
        return spec

    def _real(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            found = finder.find_spec(fullname, path, target) if finder is not self else None
            if found is not None:
                return found
        return None


class _Shell(Loader):
    """Loads a module that has the names of one of Turnout's."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        home = importlib.import_module(self._source.module)
        names = self._source.names or tuple(name for name in home.__all__ if name != "install")

        def get(name: str) -> object:
            if name in names:
                value: object = getattr(home, name)
                if name in vars(home):  # else it is chosen anew each time
                    setattr(module, name, value)
                return value
            if not name.startswith("__") and _is_rays_own(f"{module.__name__}.{name}"):
                return importlib.import_module(f"{module.__name__}.{name}")
            raise AttributeError(f"module {module.__name__!r}, which is Turnout's, has no attribute {name!r}")

        vars(module).update(__doc__=home.__doc__, __all__=list(names), __getattr__=get, __dir__=lambda: sorted(names))


class _Refusal(Loader):
    """Refuses to load a module."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        from turnout.compat.ray_train.errors import NotOfferedError

        raise NotOfferedError(f"{module.__name__} cannot be used while ray.train is Turnout: {self._reason}")


def _is_rays_own(module: str) -> bool:
    """Whether there is such a module, and it is not of the table: those are imported by whoever asks for them."""
    if module in MODULES or module in REFUSED:
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
