"""Controllers by name: the built-in ones, those of installed packages (entry points), and those registered by hand."""

from __future__ import annotations

import importlib
import logging
from typing import cast

from turnout.controllers.base import Controller
from turnout.errors import UsageError

__all__ = ["ENTRY_POINT_GROUP", "find", "known", "register"]

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "turnout.controllers"

# Names to "module:Class", imported on first use: most programs need one controller of several.
_BUILT_IN = {
    "local": "turnout.controllers.local:LocalController",
    "torchrun": "turnout.controllers.local_torch:LocalTorchController",
    "ray": "turnout.controllers.ray.controller:RayController",
    "process": "turnout.controllers.process:ProcessController",
}
_registered: dict[str, type[Controller]] = {}


def register(name: str, controller: type[Controller]) -> None:
    """Make ``ScalingConfig(controller=name)`` mean ``controller`` in this process.

    Args:
        name: not that of a built-in controller.
        controller: a class derived from `turnout.controllers.Controller`.

    Raises:
        UsageError: the name is a built-in controller's or another class's, or ``controller`` is no controller class.
    """
    if not (isinstance(controller, type) and issubclass(controller, Controller)):
        raise UsageError(
            f"register({name!r}, {controller!r}): takes a class derived from turnout.controllers.Controller"
        )
    if name in _BUILT_IN:
        raise UsageError(f"register({name!r}): a built-in controller has this name; choose another")
    if _registered.get(name, controller) is not controller:
        raise UsageError(f"register({name!r}): {_registered[name]!r} is registered under this name; choose another")
    _registered[name] = controller


def known() -> list[str]:
    """The names of all controllers, sorted."""
    return sorted({*_BUILT_IN, *_registered, *_entry_points()})


def find(name: str) -> type[Controller]:
    """The controller class of that name, imported now.

    Raises:
        UsageError: there is none; the text lists those that there are.
    """
    if name in _BUILT_IN:
        return _load(_BUILT_IN[name])
    if name in _registered:
        return _registered[name]
    location = _entry_points().get(name)
    if location is None:
        names = ", ".join(repr(each) for each in known())
        raise UsageError(
            f"no controller is named {name!r}; known: {names}. ScalingConfig(num_workers=0) trains in this process"
        )
    controller = _load(location)
    if not (isinstance(controller, type) and issubclass(controller, Controller)):
        raise UsageError(
            f"the entry point {name!r} = {location!r} is no class derived from turnout.controllers.Controller"
        )
    return controller


def _load(location: str) -> type[Controller]:
    module, _, name = location.partition(":")
    return cast(type[Controller], getattr(importlib.import_module(module), name))


def _entry_points() -> dict[str, str]:
    """What installed packages offer; a package cannot take the name of a built-in controller."""
    from importlib.metadata import entry_points

    found: dict[str, str] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name in _BUILT_IN:
            logger.warning(
                "the entry point %r = %r is not used: a built-in controller has its name", point.name, point.value
            )
        else:
            found[point.name] = point.value
    return found
