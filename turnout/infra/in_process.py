"""Workers in this process: the object itself, or all ranks of a group taking turns, deterministically."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from turnout.environment import WORKER_VARIABLE
from turnout.infra.calls import ENDED, Call, ItemSource, Pending, Workers, plain_function, run_part
from turnout.infra.collect import Reply
from turnout.infra.dispatch import Part
from turnout.infra.remote_errors import Origin, told_error
from turnout.infra.seeds import RandomState
from turnout.infra.whoami import Turn, taking_the_turn_of

__all__ = ["InPlace", "Ready", "Simulated", "copied"]


class Ready(Pending):
    """What has ended when the call returns.

    Args:
        call: that was made.
        replies: of the workers.
        error: that the caller is told; None if none has failed.
        world_size: processes that run the same program, of which each has replies of its own.
    """

    def __init__(self, call: Call, replies: list[Reply], error: BaseException | None, world_size: int = 1) -> None:
        super().__init__(call)
        self._replies = replies
        self._error = error
        self._world_size = world_size

    def replies(self, deadline: float | None, places: Sequence[int] | None) -> list[Reply]:
        """All replies."""
        if self._error is not None:
            raise self._error
        return self._replies

    def is_done(self) -> bool:
        """Always."""
        return True

    def known_failure(self) -> BaseException | None:
        """The error, if there is one."""
        return self._error

    def gathered(self, replies: list[Reply]) -> tuple[list[Reply], bool]:
        """Those of all processes of torchrun."""
        if self._world_size == 1:
            return replies, False
        from turnout.infra.torch_groups import gathered

        return [reply for each in gathered(replies, self._world_size) for reply in each], True


class InPlace(Workers):
    """The object that is called, in this process; under torchrun every process has one.

    Args:
        size: processes that run the same program.
        rank: of this one.
        is_whole: whether this process takes what it is called with as its own part.
    """

    def __init__(self, size: int = 1, rank: int = 0, *, is_whole: bool = False) -> None:
        super().__init__(size)
        self._rank = rank
        self.is_whole = is_whole
        self.num_running = 0
        """Calls of the object that are under way, in which it is the plain object."""

    @property
    def own_rank(self) -> int | None:
        """This process."""
        return self._rank

    def submit(self, target: Any, call: Call, parts: Sequence[Part], ranks: Sequence[int]) -> Pending:
        """Run this process's part, now."""
        replies: list[Reply] = []
        error: BaseException | None = None
        self.num_running += 1
        try:
            for part in parts:
                replies.append(run_part(plain_function(type(target), call.name), target, part))
        except Exception as cause:
            error = told_error(cause, _origin(call, self._rank))
        finally:
            self.num_running -= 1
        return Ready(call, replies, error, self.size)

    def iterator(self, ranks: Sequence[int], call: Call) -> ItemSource:
        """Is not asked for: the object iterates by itself."""
        raise NotImplementedError


class Simulated(Workers):
    """Instances for all ranks of a group, which take turns in this process.

    Args:
        size: of the group.
        call: of the constructor.
        build: makes the instance of a rank.
        random_states: of the ranks.
    """

    def __init__(
        self, size: int, call: Call, build: Callable[[int], Any], random_states: Sequence[RandomState]
    ) -> None:
        super().__init__(size)
        self._random_states = random_states
        self._group = call.group
        self.instances: list[Any] = []
        for rank in range(size):
            with self.turn(rank):
                try:
                    self.instances.append(build(rank))
                except Exception as cause:
                    told = told_error(cause, _origin(call, rank))
                    raise told from told.__cause__

    def submit(self, target: Any, call: Call, parts: Sequence[Part], ranks: Sequence[int]) -> Pending:
        """Run the parts, in rank order, each with copies of what it is given and returns, as on Ray."""
        replies: list[Reply] = []
        failures: dict[int, BaseException] = {}
        for rank, part in zip(ranks, parts, strict=True):
            instance = self.instances[rank]
            own = Part(copied(part.args), copied(part.kwargs), part.num_items, part.num_copies)
            with self.turn(rank):
                try:
                    reply = run_part(plain_function(type(instance), call.name), instance, own)
                    replies.append(reply._replace(value=copied(reply.value)))
                except Exception as cause:  # told below; the other ranks run, as on Ray
                    failures[rank] = cause
        error = None
        if failures:
            first = next(iter(failures))
            error = told_error(failures[first], _origin(call, first), failures)
        return Ready(call, replies, error)

    def iterator(self, ranks: Sequence[int], call: Call) -> ItemSource:
        """Iterate on every instance."""
        return _Steps(self, ranks)

    @contextlib.contextmanager
    def turn(self, rank: int) -> Iterator[None]:
        """Be a rank for the length of the block: by number, environment and random numbers."""
        with (
            taking_the_turn_of(Turn(rank, self._group, self.size)),
            _with_variables(_variables(rank, self.size)),
            self._random_states[rank].in_place(),
        ):
            yield


class _Steps(ItemSource):
    def __init__(self, workers: Simulated, ranks: Sequence[int]) -> None:
        self._workers = workers
        self._iterators: dict[int, Iterator[Any]] = {}
        for rank in ranks:
            with workers.turn(rank):
                self._iterators[rank] = iter(workers.instances[rank])

    def step(self, call: Call) -> tuple[Pending, list[int]]:
        replies: list[Reply] = []
        error: BaseException | None = None
        for rank, iterator in self._iterators.items():
            with self._workers.turn(rank):
                try:
                    replies.append(Reply(copied(next(iterator))))
                except StopIteration:
                    replies.append(Reply(None, rows=ENDED))
                except Exception as cause:
                    error = error or told_error(cause, _origin(call, rank))
        return Ready(call, replies, error), list(self._iterators)

    def close(self) -> None:
        self._iterators.clear()


@contextlib.contextmanager
def _with_variables(variables: dict[str, str]) -> Iterator[None]:
    """Have environment variables for the length of the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _variables(rank: int, size: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "NODE_RANK": "0",
        WORKER_VARIABLE: "1",
    }


def copied(value: Any) -> Any:
    """A copy, as another process would get; what cannot be copied is passed as it is."""
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever a class of the user's does when it is copied
        return value


def _origin(call: Call, rank: int) -> Origin:
    return Origin(call.label, call.group, rank, socket.gethostname(), os.getpid(), "", call.caller)
