"""What travels between processes: work, refused by the name of the variable at fault, and errors, which come whole."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.distributed.ranks import ROOT, fit, program
from turnout import UsageError
from turnout.controllers.travel import dumps, dumps_by_value, dumps_work, loads, packed_error, unpacked_error


class Holder:
    """An object with a lock inside."""

    def __init__(self) -> None:
        self.inner = {"locks": [threading.Lock()]}

    def train(self) -> None:
        """A bound method."""


class Slotted:
    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = threading.Lock()


def _captured() -> tuple[Callable[..., object], Any]:
    guard = threading.Lock()

    def train() -> None:
        with guard:
            pass

    return train, None


def _captured_within() -> tuple[Callable[..., object], Any]:
    holder = Holder()

    def step() -> None:
        holder.train()

    def train() -> None:
        step()

    return train, None


def _default() -> tuple[Callable[..., object], Any]:
    def train(config: Any, guard: Any = threading.Lock()) -> None:  # noqa: B008
        pass

    return train, {}


def _keyword_default() -> tuple[Callable[..., object], Any]:
    def train(config: Any, *, guard: Any = threading.Lock()) -> None:  # noqa: B008
        pass

    return train, {}


def _config() -> tuple[Callable[..., object], Any]:
    return (lambda config: None), {"model": {"guard": threading.Lock()}}


def _method() -> tuple[Callable[..., object], Any]:
    return Holder().train, None


def _partial() -> tuple[Callable[..., object], Any]:
    return functools.partial(lambda config, guard: None, guard=threading.Lock()), {}


def _slots() -> tuple[Callable[..., object], Any]:
    slotted = Slotted()
    return (lambda: slotted), None


def _nested_code() -> tuple[Callable[..., object], Any]:
    guard = threading.Lock()

    def train() -> None:
        def inner() -> object:
            return guard

        inner()

    return train, None


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (_captured, "the variable 'guard' that _captured.<locals>.train captures, a _thread.lock,"),
        (
            _captured_within,
            "the variable 'holder' that _captured_within.<locals>.step captures.inner['locks'][0], a _thread.lock,",
        ),
        (_default, "the default number 0 of _default.<locals>.train, a _thread.lock,"),
        (_keyword_default, "the default 'guard' of _keyword_default.<locals>.train, a _thread.lock,"),
        (_config, "train_loop_config['model']['guard'], a _thread.lock,"),
        (_method, "the object that the train function is a method of.inner['locks'][0], a _thread.lock,"),
        (_partial, "the train function's argument 'guard', a _thread.lock,"),
        (_slots, "the variable 'slotted' that _slots.<locals>.<lambda> captures.held, a _thread.lock,"),
        (_nested_code, "the variable 'guard' that _nested_code.<locals>.train captures, a _thread.lock,"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_its_name_before_a_rank_starts(
    make: Callable[[], tuple[Callable[..., object], Any]], named: str, tmp_path: Path
) -> None:
    train, config = make()
    with pytest.raises(UsageError) as caught:
        fit(train, tmp_path, config=config)
    assert str(caught.value).startswith(f"{named} cannot be sent to worker processes (TypeError: ")
    assert "pickle" in str(caught.value)


def test_a_global_of_the_script_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    source = """
        import threading
        from turnout import DataParallelTrainer, RunConfig, ScalingConfig

        guard = threading.Lock()

        def train():
            def inner():
                with guard:
                    print("a rank has started")
            inner()

        DataParallelTrainer(
            train, scaling_config=ScalingConfig(2, controller="process"), run_config=RunConfig(storage_path=".")
        ).fit()
    """
    with program(tmp_path, source) as driver:
        assert driver.wait() == 1
    assert "UsageError: the global variable 'guard' that train uses, a _thread.lock, cannot be sent" in driver.text
    assert "a rank has started" not in driver.text


def test_a_function_of_a_module_beside_the_script_runs_from_another_working_directory(tmp_path: Path) -> None:
    (tmp_path / "project" / "helpers").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project" / "helpers" / "mod.py").write_text(
        "import os\nimport turnout\n\ndef train():\n    turnout.report({'step': 0})\n    return os.getcwd(), __file__\n"
    )
    source = """
        from helpers.mod import train
        from turnout import DataParallelTrainer, RunConfig, ScalingConfig

        result = DataParallelTrainer(
            train, scaling_config=ScalingConfig(2, controller="process"), run_config=RunConfig(storage_path=".")
        ).fit()
        print("VALUES", result.return_values, flush=True)
    """
    with program(tmp_path / "project", source, cwd=tmp_path / "elsewhere") as driver:
        assert driver.wait() == 0, driver.text
    expected = (str(tmp_path / "elsewhere"), str(tmp_path / "project" / "helpers" / "mod.py"))
    assert f"VALUES {[expected, expected]}" in driver.text


def test_a_module_that_a_rank_cannot_import_is_named(tmp_path: Path) -> None:
    module = type(sys)("only_here")
    exec("def helper():\n    pass", module.__dict__)
    sys.modules["only_here"] = module
    helper = module.helper
    try:
        with pytest.raises(ModuleNotFoundError, match="only_here") as caught:
            fit(lambda: helper(), tmp_path)
    finally:
        del sys.modules["only_here"]
    assert isinstance(caught.value, turnout.WorkerGroupError)
    assert any("while the train function was received" in note for note in caught.value.__notes__)


@dataclass
class Point:
    x: int
    tags: list[str] = field(default_factory=list)


def test_plain_values_travel_by_plain_pickle_and_what_a_function_defines_by_value() -> None:
    assert dumps(Point(1)) == pickle.dumps(Point(1), pickle.HIGHEST_PROTOCOL)
    offset = 3
    assert loads(dumps(lambda x: x + offset))(4) == 7


def test_a_function_that_travels_by_value_keeps_its_file_in_tracebacks() -> None:
    function = loads(dumps_by_value(lambda: 1 / 0))
    assert function.__code__.co_filename == __file__


class WithStateError(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(code)
        self.hint = hint

    def __str__(self) -> str:
        return f"code {self.args[0]}: {self.hint}"


class RefusesStateError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        WithStateError(7, hint="odd"),
        OSError(2, "No such file", "/a/b"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        KeyError("k"),
        SystemExit(3),
        ExceptionGroup("several", [ValueError("one"), WithStateError(1, hint="two")]),
        turnout.WorkerGroupError("a group", {1: ValueError("x")}),
        turnout.MissingDependencyError("torch", "pip install torch"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_is_rebuilt_with_its_class_text_and_state(error: BaseException) -> None:
    back = unpacked_error(packed_error(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args or isinstance(error, ExceptionGroup)


def test_causes_contexts_and_notes_come_along() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        error.add_note("a note")
        back = unpacked_error(packed_error(error))
    assert isinstance(back.__cause__, KeyError)
    assert back.__notes__ == ["a note"]


def test_an_exception_that_cannot_travel_comes_as_its_name_and_text() -> None:
    error = RefusesStateError("it holds a lock")
    back = unpacked_error(packed_error(error))
    assert isinstance(back, turnout.WorkerGroupError)
    assert str(back) == "RefusesStateError: it holds a lock"


def test_a_chain_of_causes_without_end_is_cut() -> None:
    first: BaseException = ValueError("0")
    last = first
    for number in range(1, 50):
        last.__cause__ = ValueError(str(number))
        last = last.__cause__
    last.__cause__ = first
    depth, link = 0, unpacked_error(packed_error(first))
    while link.__cause__ is not None:
        depth, link = depth + 1, link.__cause__
    assert 5 <= depth <= 10


def test_work_that_is_refused_for_no_part_of_the_users_still_says_why() -> None:
    def parts() -> Iterator[tuple[str, Any]]:
        yield "the train function", len

    guard = threading.Lock()
    with pytest.raises(UsageError, match="something in the run cannot be sent to worker processes"):
        dumps_work(lambda: guard, parts)


def test_importing_what_travels_takes_no_heavy_package() -> None:
    code = (
        "import sys, turnout.controllers.process; print({'torch', 'ray', 'pyarrow', 'cloudpickle'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
