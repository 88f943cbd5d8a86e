"""One exception of two classes: what `fit()` raises is a `WorkerGroupError` and the user's own exception at once.

`except MyError` and `except turnout.TrainingFailedError` then both catch it, in a unit test and in production.
"""

from __future__ import annotations

import functools
import pickle
from typing import Any

from turnout.errors import WorkerGroupError

__all__ = ["combine", "state_of", "text_of"]

_UNSET = object()


def combine(cause: BaseException, failures: dict[int, BaseException]) -> WorkerGroupError:
    """Make the error that stands for ``cause``, the first failure of a group of workers.

    Args:
        cause: the exception that the train function raised.
        failures: the exception of each failed rank, by world rank.

    Returns:
        An instance of `WorkerGroupError` and of ``type(cause)`` that reads and carries data as ``cause`` does. Where
        Python cannot build that class (a final class, an exception group), a plain `WorkerGroupError` with ``cause``
        as its `__cause__`.
    """
    error: WorkerGroupError
    try:
        error = _build(type(cause), cause.args, failures)
        for name, value in state_of(cause).items():
            setattr(error, name, value)
        if str(error) != str(cause):
            raise TypeError(f"{type(cause)} does not read the same when combined")
    except Exception:  # whatever a class of the user's does when it is derived from: the plain error always works
        error = WorkerGroupError(f"{type(cause).__name__}: {text_of(cause)}", failures)
        error.__cause__ = cause
        return error
    error.__cause__, error.__context__ = cause.__cause__, cause.__context__
    error.__suppress_context__ = cause.__suppress_context__
    return error


def text_of(error: BaseException) -> str:
    """What an exception says; for one whose own ``__str__`` raises, its arguments."""
    try:
        return str(error)
    except Exception:
        return ", ".join(
            object.__repr__(each) if isinstance(each, BaseException) else repr(each) for each in error.args
        )


def _build(cause_class: type[BaseException], args: tuple[Any, ...], failures: dict[int, BaseException]) -> Any:
    if not issubclass(cause_class, Exception) or issubclass(
        cause_class, (BaseExceptionGroup, MemoryError, StopIteration)
    ):
        raise TypeError(f"{cause_class.__name__} is not combined")
    if issubclass(cause_class, WorkerGroupError):
        return _new(cause_class, args, failures)
    combined: Any = _combined_class  # a class is hashable, which the type of its instances hides
    return _new(combined(cause_class), args, failures)


@functools.lru_cache(maxsize=256)  # a class of the user's may keep count of those that derive from it
def _combined_class(cause_class: type[BaseException]) -> type[BaseException]:
    namespace = {
        "__init__": lambda self, *_args, **_kwargs: None,  # the user's own may need arguments that are not kept
        "__str__": cause_class.__str__,
        "__reduce_ex__": lambda self, protocol: (
            _rebuild,
            (cause_class, self.args, _portable(self.worker_failures), state_of(self)),
        ),
        "__module__": cause_class.__module__,
        "__qualname__": cause_class.__qualname__,
        "__doc__": cause_class.__doc__,
    }
    return type(cause_class.__name__, (WorkerGroupError, cause_class), namespace)


def _new(error_class: type[BaseException], args: tuple[Any, ...], failures: dict[int, BaseException]) -> Any:
    try:
        error: Any = error_class.__new__(error_class, *args)
    except TypeError:  # the user's own needs arguments that are not kept
        error = BaseException.__new__(error_class, *args)
    error.args = args
    error.worker_failures = failures
    return error


def _rebuild(
    cause_class: type[BaseException], args: tuple[Any, ...], failures: dict[int, BaseException], state: dict[str, Any]
) -> WorkerGroupError:
    error: WorkerGroupError = _build(cause_class, args, failures)
    for name, value in state.items():
        setattr(error, name, value)
    error.error_message = str(error)
    return error


def _portable(failures: dict[int, BaseException]) -> dict[int, BaseException]:
    """The failures as they can travel: one that cannot be rebuilt from its pickle goes as its class's name and text."""
    portable = {}
    for rank, failure in failures.items():
        try:
            pickle.loads(pickle.dumps(failure))
            portable[rank] = failure
        except Exception:
            portable[rank] = WorkerGroupError(f"{type(failure).__name__}: {text_of(failure)}")
    return portable


def state_of(error: BaseException) -> dict[str, Any]:
    """What an exception holds beside its arguments: its dict, its slots, and the C fields of OSError and others."""
    state = dict(error.__dict__)
    for base in type(error).__mro__:
        if base in (BaseException, Exception, object):
            break
        if base in (BaseExceptionGroup, ExceptionGroup):
            continue  # what it holds are its arguments, and cannot be set
        for name, descriptor in vars(base).items():
            if type(descriptor).__name__ in ("member_descriptor", "getset_descriptor") and not name.startswith("__"):
                value = getattr(error, name, _UNSET)
                # C fields read as None where they were never set, and OSError's text changes when they are set to it.
                if value is not _UNSET and not (value is None and base.__module__ == "builtins"):
                    state[name] = value
    state.pop("worker_failures", None)
    if "__notes__" in state:
        state["__notes__"] = list(state["__notes__"])  # what is noted on one is not on the other
    return state
