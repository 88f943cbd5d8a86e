"""The public face: what is exported is there, sorted, and the same for the type checker as at run time."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import turnout

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(turnout.__path__, "turnout.")
    if not any(part.startswith("_") for part in module.name.split("."))
)


@pytest.mark.parametrize("name", ["turnout", *MODULES])
def test_every_name_in_all_is_there(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert [each for each in exported if not hasattr(module, each)] == []
    assert len(exported) == len(set(exported))  # and ruff holds their order


@pytest.mark.parametrize("name", ["turnout", *MODULES])
def test_every_module_opens_with_a_sentence_and_every_public_thing_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip()
    for each in getattr(module, "__all__", []):
        thing = getattr(module, each)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name}.{each}"


def test_the_names_that_a_type_checker_sees_are_those_of_the_run_time() -> None:
    tree = ast.parse(Path(turnout.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == turnout._HOME_OF  # type: ignore[attr-defined]
    assert sorted(turnout.__all__) == sorted(seen)


def test_dir_lists_names_that_are_not_imported_yet() -> None:
    program = "import turnout; print('TorchTrainer' in dir(turnout), 'report' in dir(turnout))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.split() == ["False", "True"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        turnout.nope  # type: ignore[attr-defined]  # noqa: B018
