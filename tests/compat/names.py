"""What is public in Ray Train, and how a name of its differs from Turnout's of the same name.

A program of its own, as it imports every framework there is.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import sys
from enum import Enum
from typing import Any

from turnout.compat.ray_train.names import MODULES

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def public_names(module: str) -> list[str]:
    """The names that a module of Ray's exports: those of ``__all__``, or that it defines."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    exported = getattr(importlib.import_module(module), "__all__", None)
    if exported is not None:
        return sorted(exported)
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    defined = (ast.ClassDef, ast.FunctionDef)
    return sorted(node.name for node in tree.body if isinstance(node, defined) and not node.name.startswith("_"))


def differences(theirs: Any, ours: Any) -> list[str]:
    """In what a call that is right there would be wrong here, and what has no such name here."""
    if inspect.isclass(theirs) and issubclass(theirs, Enum):
        assert inspect.isclass(ours)
        assert issubclass(ours, Enum)
        missing = set(theirs.__members__) - set(ours.__members__)
        return [f"has no member {each}" for each in sorted(missing)]
    if not callable(theirs):
        return [] if theirs == ours else [f"is {ours!r} and not {theirs!r}"]
    found = _differences_of_call(theirs, ours)
    if inspect.isclass(theirs):
        for name in _public_attributes(theirs):
            own = inspect.getattr_static(ours, name, None)
            if own is None and name not in getattr(ours, "__annotations__", {}):
                found.append(f"has no {name}")
            elif inspect.isfunction(getattr(theirs, name)) or inspect.ismethod(getattr(theirs, name)):
                of_method = _differences_of_call(getattr(theirs, name), getattr(ours, name))
                found += [f"{name}(): {each}" for each in of_method]
    return found


def _public_attributes(kind: type) -> list[str]:
    """Methods and properties that the package of the class defines, and not a base of another's."""
    names = set()
    for base in kind.__mro__:
        if base.__module__.startswith("ray."):
            names |= {
                name
                for name, value in vars(base).items()
                if not name.startswith("_")
                and (inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)))
            }
    return sorted(names)


def _differences_of_call(theirs: Any, ours: Any) -> list[str]:
    try:
        expected = list(inspect.signature(theirs).parameters.values())
    except (TypeError, ValueError):
        return []
    found = []
    given = _signature(ours).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in given.values())
    places = [each.name for each in given.values() if each.kind in _POSITIONAL]
    for place, parameter in enumerate(each for each in expected if each.kind in _POSITIONAL):
        if takes_any and parameter.name not in given:
            continue
        if parameter.name not in given:
            found.append(f"takes no {parameter.name}")
        elif parameter.name not in places[place : place + 1]:
            found.append(f"takes {parameter.name} elsewhere")
    for parameter in expected:
        own = given.get(parameter.name)
        if own is None:
            if parameter.kind is parameter.KEYWORD_ONLY and not takes_any:
                found.append(f"takes no {parameter.name}")
        elif parameter.default is not parameter.empty and not _is_same(parameter.default, own.default):
            found.append(f"{parameter.name} is {own.default!r} by default, and not {parameter.default!r}")
    known = {each.name for each in expected}
    for parameter in given.values():
        is_named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_named and parameter.name not in known and parameter.default is parameter.empty:
            found.append(f"needs {parameter.name}")
    return found


def _signature(called: Any) -> inspect.Signature:
    try:
        return inspect.signature(called)
    except ValueError:  # an exception that has no constructor of its own
        return inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


def _is_same(theirs: object, ours: object) -> bool:
    if isinstance(theirs, Enum):
        return isinstance(ours, Enum) and theirs.name == ours.name
    return theirs == ours


def differences_of(module: str) -> dict[str, list[str]]:
    """In what the public names of a module of Ray's differ from Turnout's, for those that do."""
    theirs, source = importlib.import_module(module), MODULES[module]
    ours = importlib.import_module(source.module)
    found = {}
    for name in public_names(module):
        if name not in (source.names or ours.__all__):
            found[name] = ["is not there"]
        elif different := differences(getattr(theirs, name), getattr(ours, name)):
            found[name] = different
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps({module: differences_of(module) for module in sys.argv[1:]}))
