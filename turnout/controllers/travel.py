"""How objects of the user's travel between processes: values, exceptions, and the work that a rank is given.

Plain pickle comes first, as it is quick; cloudpickle takes what a script or a notebook defines itself, by value.
"""

from __future__ import annotations

import functools
import io
import pickle
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from turnout.combined_error import state_of, text_of
from turnout.errors import UsageError, WorkerGroupError

__all__ = ["dumps", "dumps_work", "loads", "packed_error", "traceback_text", "unpacked_error"]

loads = pickle.loads


def dumps(value: Any) -> bytes:  # Any: whatever the ranks pass each other
    """A value as bytes, for `loads` on another rank of the same run."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:  # what pickle raises for something that it cannot find by name has no common class
        return dumps_by_value(value)


def dumps_by_value(value: Any) -> bytes:  # Any: whatever the user's program holds
    """A value as bytes; functions and classes that no import can find are taken along, and know their files."""
    with io.BytesIO() as file:
        _pickler_by_value()(file).dump(value)
        return file.getvalue()


@functools.cache  # a class is made once; cloudpickle is imported by those who need it
def _pickler_by_value() -> Any:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        def reducer_override(self, thing: Any) -> Any:  # Any: as pickle asks
            if isinstance(thing, types.CodeType):
                # Recent cloudpickles leave the file's name out, and with it the place in every traceback.
                kind, parts = self.dispatch_table[types.CodeType](thing)
                return kind, tuple(thing.co_filename if part == "<dynamic-code>" else part for part in parts)
            return super().reducer_override(thing)

    return Pickler


def dumps_work(work: object, parts: Callable[[], Iterator[tuple[str, Any]]]) -> bytes:
    """What a rank is to run, as bytes.

    Args:
        work: is pickled by value where it is defined in the user's own script.
        parts: names the things in it that are the user's, to be tried one by one should the whole not pickle.

    Raises:
        UsageError: it cannot be pickled; the text names the variable at fault.
    """
    try:
        return dumps_by_value(work)
    except Exception as error:
        culprit = next((found for name, part in parts() if (found := _culprit(name, part, error, depth=8))), None)
        name, reason = culprit or ("something in the run", f"{type(error).__name__}: {text_of(error)}")
        raise UsageError(
            f"{name} cannot be sent to worker processes ({reason}). Make it inside of the train function, or leave it "
            "out of what the function refers to"
        ) from error


def _culprit(name: str, value: Any, error: Exception, depth: int) -> tuple[str, str] | None:
    """The innermost part of ``value`` that does not pickle, and why; None if it does."""
    try:
        dumps_by_value(value)
    except Exception as own:
        error = own
    else:
        return None
    for part_name, part in _parts_of(name, value) if depth else ():
        found = _culprit(part_name, part, error, depth - 1)
        if found is not None:
            return found
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{name}, a {kind},", f"{type(error).__name__}: {text_of(error)}"


def _parts_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    function = getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)
    if code is not None:
        title = getattr(function, "__qualname__", name)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                yield f"the variable {variable!r} that {title} captures", cell.cell_contents
            except ValueError:  # a cell that is still empty
                continue
        for variable in _names_in(code):
            if variable in function.__globals__:
                yield f"the global variable {variable!r} that {title} uses", function.__globals__[variable]
        for index, default in enumerate(function.__defaults__ or ()):
            yield f"the default number {index} of {title}", default
        for parameter, default in (function.__kwdefaults__ or {}).items():
            yield f"the default {parameter!r} of {title}", default
    if getattr(value, "__self__", None) is not None and not isinstance(value.__self__, type(pickle)):
        yield f"the object that {name} is a method of", value.__self__
    if hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        yield f"{name}'s function", value.func
        yield from ((f"{name}'s argument {index}", each) for index, each in enumerate(value.args))
        yield from ((f"{name}'s argument {key!r}", each) for key, each in value.keywords.items())
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, (list, tuple, set)):
        yield from ((f"{name}[{index}]", each) for index, each in enumerate(value))
    elif code is None and not isinstance(value, type):
        slots = (slot for base in type(value).__mro__ for slot in vars(base).get("__slots__", ()))
        yield from ((f"{name}.{key}", each) for key, each in getattr(value, "__dict__", {}).items())
        yield from ((f"{name}.{slot}", getattr(value, slot)) for slot in slots if hasattr(value, slot))


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The names that a function's code uses, and that of functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def packed_error(error: BaseException, depth: int = 8) -> bytes:
    """An exception as bytes: whole where it can be rebuilt, else one that stands for it by its class's name and text.

    It is rebuilt without its constructor, which may need arguments that are not kept.

    Args:
        error: as it was raised.
        depth: how many of its causes are taken along.
    """
    try:
        data = dumps(_described(error, depth))
        if text_of(unpacked_error(data)) == text_of(error):
            return data
    except Exception:  # whatever a class of the user's does when it is pickled or built
        pass
    return dumps(_described(WorkerGroupError(f"{type(error).__name__}: {text_of(error)}"), 0))


def unpacked_error(data: bytes) -> BaseException:
    """The exception that `packed_error` was given."""
    kind, args, members, state, cause, is_explicit = loads(data)
    if members is not None:
        args = (args[0], [unpacked_error(each) for each in members])
    try:
        error: BaseException = kind.__new__(kind, *args)
    except TypeError:
        error = BaseException.__new__(kind, *args)
    error.args = args
    if isinstance(error, WorkerGroupError):
        error.worker_failures = {}
    for name, value in state.items():
        setattr(error, name, value)
    if cause is not None and is_explicit:
        error.__cause__ = unpacked_error(cause)
    elif cause is not None:
        error.__context__ = unpacked_error(cause)
    return error


def traceback_text(error: BaseException) -> str:
    """An exception with its traceback, as Python shows it, from the first frame that it still has."""
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # a class of the user's may refuse to be shown
        return f"{type(error).__name__}: {text_of(error)}"


def _described(error: BaseException, depth: int) -> tuple[Any, ...]:
    is_explicit = error.__cause__ is not None
    cause = error.__cause__ if is_explicit or error.__suppress_context__ else error.__context__
    args, members = error.args, None
    if isinstance(error, BaseExceptionGroup):  # its members are what may need arguments that are not kept
        args, members = (error.message,), [packed_error(each, depth) for each in error.exceptions]
    return (
        type(error),
        args,
        members,
        state_of(error),
        packed_error(cause, depth - 1) if cause is not None and depth else None,
        is_explicit,
    )
