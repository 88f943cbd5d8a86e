"""`LazyCollect`: the result of a call, which is waited for, put together and brought here when it is used."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

from turnout.checks import check_number
from turnout.infra.calls import Pending
from turnout.infra.collect import Collecting, collected
from turnout.infra.dispatch import Later
from turnout.infra.remote_errors import CallTimeoutError
from turnout.infra.world import current_world

__all__ = ["LazyCollect"]

R = TypeVar("R")


class LazyCollect(Later, Generic[R]):
    """What a remote function returns at once.

    Calling it waits for the workers, puts their results together and returns that; again, it returns the same without
    waiting. It can be iterated, measured, indexed and awaited like the result itself. Passed to another remote
    function it stands for its result, which then goes from worker to worker and not through this process.

    Example:
        >>> import turnout.infra as infra
        >>> class Counter:
        ...     @infra.remote_function(collect="sum")
        ...     def count(self, words: list[str]) -> int:
        ...         return len(words)
        >>> Counter = infra.remote_class()(Counter)
        >>> result = Counter().count(["a", "b"])
        >>> result()
        2
    """

    __slots__ = (
        "__weakref__",
        "_all_ranks",
        "_collecting",
        "_error",
        "_is_read",
        "_lock",
        "_of_all",
        "_pending",
        "_value",
    )

    def __init__(self, pending: Pending, collecting: Collecting, *, all_ranks: bool = False) -> None:
        self._all_ranks = all_ranks
        self._pending = pending
        self._collecting = collecting
        self._lock = threading.Lock()
        self._is_read = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._of_all: tuple[Any] | None = None

    def __call__(self, *, all_ranks: bool = False) -> R:
        """The result, once it is there.

        Args:
            all_ranks: under torchrun that of all processes, which each asks for; everywhere else it is anyway.

        Raises:
            WorkerGroupError: a worker has failed; also an instance of the error's own class.
        """
        return self._read(self._pending.call.deadline, all_ranks)

    def result(self, timeout: float | None = None) -> R:
        """The result, if it is there in time.

        Args:
            timeout: seconds from now; None for no limit but the method's own.

        Raises:
            TimeoutError: it is not; it can be asked for again.
            WorkerGroupError: as above.
        """
        deadline = self._pending.call.deadline
        if timeout is not None:
            timeout = check_number("LazyCollect.result(): timeout", timeout, at_least=0, unit="seconds")
            own = time.monotonic() + timeout
            deadline = own if deadline is None else min(own, deadline)
        return self._read(deadline, False)

    def done(self) -> bool:
        """Whether the result, or the error, can be had without waiting for a worker."""
        return self._is_read or self._pending.is_done()

    def _read(self, deadline: float | None, all_ranks: bool) -> R:
        # Another thread may be waiting, for longer than this one would.
        left_s = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._lock.acquire(timeout=left_s):
            raise CallTimeoutError(
                f"{self._pending.call.label}: another thread waits for the result, and it has not come"
            )
        try:
            if not self._is_read:
                self._collect(deadline)
            if self._error is not None:
                raise self._error
            if all_ranks or self._all_ranks:
                of_all: R = self._read_all()
                return of_all
            value: R = self._value
            return value
        finally:
            self._lock.release()

    def _collect(self, deadline: float | None) -> None:
        collecting = self._collecting
        try:
            places = None if callable(collecting.how) else collecting.chosen
            if collecting.how in ("first", "last_pp_first"):
                places = (places or [])[:1]
            replies = self._pending.replies(deadline, places)
            self._value = collected(collecting, replies)
        except CallTimeoutError as error:
            if error.call is self._pending.call and not error.is_final:
                raise  # only this wait was too short
            self._error = error
        except Exception as error:  # kept, as it is raised whenever the result is asked for
            self._error = error
        self._is_read = True
        if self._error is not None:
            current_world().tell(self._pending.call, self._error)

    def _read_all(self) -> Any:  # Any: the user's own
        if self._of_all is None:
            replies, are_more = self._pending.gathered(self._pending.replies(None, None))
            collecting = self._collecting
            if are_more:
                collecting = collecting._replace(ranks=tuple(range(len(replies))))
            self._of_all = (collected(collecting, replies) if are_more else self._value,)
        return self._of_all[0]

    @property
    def later(self) -> R:
        """This very object, as the type that it will have: for type checkers, where it is passed to another call."""
        return self  # type: ignore[return-value]  # which is what it is for

    # -- for those who pass it on, and those who look after what nobody reads

    @property
    def pending(self) -> Pending:
        """The replies."""
        return self._pending

    @property
    def collecting(self) -> Collecting:
        """How they are put together."""
        return self._collecting

    @property
    def is_read(self) -> bool:
        """Whether someone has the result, or the error."""
        return self._is_read

    def __del__(self) -> None:
        if not getattr(self, "_is_read", True):
            current_world().take_unread(self._pending)

    # -- as the result itself

    def __iter__(self) -> Iterator[Any]:  # Any: elements of the user's own
        return iter(self())  # type: ignore[call-overload,no-any-return]  # it is the user's whether R can be iterated

    def __len__(self) -> int:
        return len(self())  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        return self()[key]  # type: ignore[index]

    def __bool__(self) -> bool:
        return bool(self())

    def __await__(self) -> Generator[Any, None, R]:
        return asyncio.get_running_loop().run_in_executor(None, self).__await__()

    def __repr__(self) -> str:
        call = self._pending.call
        if self._is_read:
            state = f"failed: {type(self._error).__name__}" if self._error is not None else repr(self._value)
        else:
            state = "done" if self._pending.is_done() else "pending"
        return f"<LazyCollect of {call.label} at {call.caller}: {state}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyCollect[R]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyCollect, (self._pending, self._collecting)
