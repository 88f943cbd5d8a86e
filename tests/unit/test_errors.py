"""The tree of errors, and the one exception of two classes."""

from __future__ import annotations

import builtins
import pickle
from typing import Any, Self

import pytest

import turnout
from turnout import errors
from turnout.combined_error import combine

ARGUMENTS: dict[type[Exception], tuple[Any, ...]] = {
    UnicodeDecodeError: ("utf8", b"x", 0, 1, "reason"),
    UnicodeEncodeError: ("utf8", "x", 0, 1, "reason"),
    UnicodeTranslateError: ("x", 0, 1, "reason"),
    SyntaxError: ("text", ("file", 1, 2, "line")),
    IndentationError: ("text", ("file", 1, 2, "line")),
    TabError: ("text", ("file", 1, 2, "line")),
    OSError: (5, "i/o error", "name"),
    ImportError: ("no module",),
}
NOT_COMBINED = (MemoryError, StopIteration, ExceptionGroup)
BUILT_IN = sorted(
    {
        kind
        for kind in vars(builtins).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, NOT_COMBINED)
    },
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.__name__)
def test_every_built_in_exception_combines_reads_the_same_and_pickles(kind: type[Exception]) -> None:
    cause = kind(*ARGUMENTS.get(kind, ("text", 7)))
    for error in (combine(cause, {1: cause}), pickle.loads(pickle.dumps(combine(cause, {1: cause})))):
        assert isinstance(error, kind)
        assert isinstance(error, turnout.WorkerGroupError)
        assert str(error) == str(cause)
        assert error.args == cause.args
        assert type(error.worker_failures[1]) is kind
        assert type(error).__name__ == kind.__name__
        for field in ("errno", "filename", "name", "reason", "lineno"):
            assert getattr(error, field, None) == getattr(cause, field, None)


class WithSlots(Exception):
    __slots__ = ("extra",)

    def __init__(self, extra: int) -> None:
        super().__init__("slots")
        self.extra = extra


class WithText(Exception):
    def __init__(self, first: int, second: int) -> None:
        self.first, self.second = first, second

    def __str__(self) -> str:
        return f"{self.first} of {self.second}"


class OwnNew(Exception):
    def __new__(cls, first: int, second: int) -> Self:
        return super().__new__(cls, first)

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Final(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("final")


@pytest.mark.parametrize("cause", [WithSlots(5), WithText(1, 2), OwnNew(1, 2)], ids=lambda cause: type(cause).__name__)
def test_a_class_of_the_users_combines_with_what_it_holds(cause: Exception) -> None:
    error = pickle.loads(pickle.dumps(combine(cause, {0: KeyError("k")})))
    assert isinstance(error, type(cause))
    assert str(error) == str(cause)
    for name in ("extra", "first", "second"):
        assert getattr(error, name, None) == getattr(cause, name, None)


@pytest.mark.parametrize("cause", [Final("no"), MemoryError("full"), ExceptionGroup("g", [ValueError("v")])], ids=repr)
def test_a_class_that_cannot_be_combined_becomes_the_cause_of_a_plain_error(cause: Exception) -> None:
    error = combine(cause, {0: cause})
    assert type(error) is turnout.WorkerGroupError
    assert error.__cause__ is cause
    assert str(cause) in str(error)


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_whose_text_raises_is_the_cause_of_a_plain_error() -> None:
    cause = BrokenText("argument", 3)
    error = combine(cause, {0: cause})
    assert str(error) == "BrokenText: 'argument', 3"
    assert error.__cause__ is cause


class NeedsTwo(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first}, {second}")


def test_an_exception_that_cannot_be_rebuilt_from_its_pickle_travels_all_the_same() -> None:
    cause = NeedsTwo(1, 2)
    error = pickle.loads(pickle.dumps(combine(cause, {1: cause})))
    assert isinstance(error, NeedsTwo)
    assert str(error) == "1, 2"
    assert isinstance(error, turnout.WorkerGroupError)
    assert str(error.worker_failures[1]) == "NeedsTwo: 1, 2"


def test_a_class_of_the_users_is_derived_from_once() -> None:
    for _ in range(3):
        combine(NeedsTwo(1, 2), {})
    assert len(NeedsTwo.__subclasses__()) == 1


def test_what_is_noted_on_the_error_is_not_noted_on_the_users() -> None:
    cause = ValueError("text")
    cause.add_note("the user's")
    combine(cause, {0: cause}).add_note("the run's")
    assert cause.__notes__ == ["the user's"]


def test_notes_are_kept() -> None:
    cause = ValueError("text")
    cause.add_note("a note of the user's")
    assert combine(cause, {0: cause}).__notes__ == ["a note of the user's"]
    assert cause.__notes__ == ["a note of the user's"]


ERRORS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_is_in_the_tree_is_exported_and_pickles(kind: type[Exception]) -> None:
    assert issubclass(kind, turnout.TurnoutError)
    assert getattr(turnout, kind.__name__) is kind
    assert kind.__name__ in (errors.__doc__ or "")
    error = kind("package", "pip install package") if kind is turnout.MissingDependencyError else kind("text")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (kind, str(error))


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (errors.UsageError, ValueError),
        (errors.MissingDependencyError, ImportError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.CheckpointNotFoundError, FileNotFoundError),
    ],
)
def test_errors_are_also_what_python_calls_them(kind: type[Exception], also: type[Exception]) -> None:
    assert issubclass(kind, also)


def test_a_missing_dependency_ends_in_the_line_that_installs_it() -> None:
    error = turnout.MissingDependencyError("xgboost", "pip install 'turnout[xgboost]'", "XGBoostTrainer")
    assert str(error).endswith("Install it with: pip install 'turnout[xgboost]'")
    assert error.name == "xgboost"
