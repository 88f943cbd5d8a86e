"""Runs a program as Python would, with `ray.train` switched to Turnout before its first line."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import NoReturn

import turnout
from turnout.compat.ray_train.switch import install

__all__ = ["main"]

_USAGE = "usage: python -m turnout.compat.ray_train (script.py | -m module) [arguments]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Throw the switch and run the program that the arguments name, as ``__main__``.

    Args:
        arguments: ``[script, ...]`` or ``["-m", module, ...]``; None for those of this process.

    Raises:
        SystemExit: they name none; else whatever the program raises.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in (["-h"], ["--help"]):
        sys.stdout.write(f"{_USAGE}\n")
        return
    is_module = given[:1] == ["-m"]
    program = given[is_module : is_module + 1]
    if not program or program[0].startswith("-"):
        _leave(_USAGE)
    install()
    main_module = ModuleType("__main__")
    if is_module:
        code, spec = _module(program[0])
        vars(main_module).update(
            __spec__=spec, __file__=spec.origin, __loader__=spec.loader, __package__=spec.parent, __cached__=spec.cached
        )
    else:
        path = program[0]
        code = _script(path)
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.realpath(path))
        loader = SourceFileLoader("__main__", path)
        vars(main_module).update(__file__=os.path.abspath(path), __loader__=loader, __cached__=None)
    sys.argv[:] = [str(main_module.__file__) if is_module else path, *given[is_module + 1 :]]
    vars(main_module)["__builtins__"] = builtins
    sys.modules["__main__"] = main_module
    # Else pytest warns that it comes too late to rewrite what is imported of its plugin's package.
    turnout.__doc__ = f"{turnout.__doc__} PYTEST_DONT_REWRITE"
    exec(code, vars(main_module))


def _script(path: str) -> CodeType:
    try:
        with io.open_code(os.path.abspath(path)) as file:
            return compile(file.read(), os.path.abspath(path), "exec", dont_inherit=True)
    except OSError as error:
        _leave(f"python -m turnout.compat.ray_train: can't open {path!r}: {error.strerror}")


def _module(name: str) -> tuple[CodeType, ModuleSpec]:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        _leave(f"python -m turnout.compat.ray_train: {error}")
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    code = get_code(spec.name) if spec is not None and get_code is not None else None
    if spec is None or code is None:
        _leave(f"python -m turnout.compat.ray_train: no module {name!r} that can be run")
    return code, spec


def _leave(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise SystemExit(2)
