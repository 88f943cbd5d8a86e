"""`RayWorkers`: the driver's side of one object whose workers are actors, and what is known of a call on them."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from turnout.cluster.seats import Whereabouts
from turnout.controllers.ray.deaths import told_of
from turnout.controllers.stacks import merged, where_of
from turnout.controllers.travel import dumps_by_value, unpacked_error
from turnout.errors import WorkerGroupError
from turnout.infra.calls import Call, ItemSource, Pending, Workers
from turnout.infra.collect import Reply
from turnout.infra.dispatch import Later, Part, SlicedLater
from turnout.infra.handles import LONGEST
from turnout.infra.lazy_collect import LazyCollect
from turnout.infra.ray.actor import GroupActor, Hello, Launch, Slot, Sources, WorkerFailed, fetched
from turnout.infra.ray.stacks import Lookouts, stacks_of
from turnout.infra.remote_errors import CallTimeoutError, Origin, told_error
from turnout.infra.rows import is_namedtuple, size_of
from turnout.infra.world import current_world

__all__ = ["RayPending", "RayWorkers"]

_SHARED_FROM = 256 * 1024  # bytes of arguments from which they are stored once for all workers
_LOOK_OUT_S = 3.0  # before a time limit, for other nodes to get ready to say where their ranks are
_NO_TIME_S = 0.25  # in which they could not


class RayWorkers(Workers):
    """The actors of one object.

    Args:
        actors: by rank.
        hellos: what each has said of itself.
        group: that they are of.
        kind_name: of the class, for people.
    """

    takes_later = True

    def __init__(self, actors: Sequence[Any], hellos: Sequence[Hello], group: str, kind_name: str) -> None:
        super().__init__(len(actors))
        self.actors = list(actors)
        self.hellos = list(hellos)
        self.group = group
        self.kind_name = kind_name

    @classmethod
    def started(
        cls,
        options: Sequence[dict[str, Any]],
        launch: Launch,
        variables: Callable[[list[Hello]], list[dict[str, str]]],
        call: Call,
        kind_name: str,
    ) -> RayWorkers:
        """Start actors and have each build its object; returns once all have.

        Args:
            options: of each actor, by rank.
            launch: what all of them begin with.
            variables: of each, from what they have said of themselves.
            call: of the constructor.
            kind_name: of the class.

        Raises:
            WorkerGroupError: a constructor has failed; also an instance of the error's own class.
        """
        import ray

        group = call.group or ""
        actors = [_actor_class().options(**each).remote() for each in options]
        shared = ray.put(launch)
        greetings = [actor.hello.remote() for actor in actors]
        workers = cls(actors, [], group, kind_name)
        try:
            workers.hellos = RayPending(call, greetings, range(len(actors)), workers).values()
            owns = variables(workers.hellos)
            built = [
                actor.build.remote(shared, group, rank, own, workers.hellos[0], call.caller)
                for rank, (actor, own) in enumerate(zip(actors, owns, strict=True))
            ]
            RayPending(call, built, range(len(actors)), workers).replies(None, [])
        except BaseException:
            workers.close()
            raise
        return workers

    def submit(self, target: Any, call: Call, parts: Sequence[Part], ranks: Sequence[int]) -> Pending:
        """Send every part to its actor; returns at once."""
        if any(part.has_later for part in parts):
            refs = [self._submit_later(call, part, rank) for part, rank in zip(parts, ranks, strict=True)]
        else:
            wires = _wires(call, parts)
            refs = [self.actors[rank].call.remote(wire) for rank, wire in zip(ranks, wires, strict=True)]
        return _told(RayPending(call, refs, ranks, self))

    def _submit_later(self, call: Call, part: Part, rank: int) -> Any:
        """Send a part of which something has still to be computed: the references, that is, and not the values."""
        lazies: list[LazyCollect[Any]] = []
        args, kwargs = _slotted(part.args, lazies), _slotted(part.kwargs, lazies)
        sources = Sources(
            tuple(dumps_by_value(lazy.collecting) for lazy in lazies),
            tuple(len(lazy.pending.refs) for lazy in lazies),  # type: ignore[attr-defined]  # remote ones have them
            part.cutting,
            part.total,
        )
        wire = [call.name, call.caller, list(args), kwargs, part.num_items, part.num_copies, sources]
        refs = [ref for lazy in lazies for ref in lazy.pending.refs]  # type: ignore[attr-defined]
        return self.actors[rank].call.remote(wire, *refs)

    def iterator(self, ranks: Sequence[int], call: Call) -> ItemSource:
        """Begin to iterate on some of the actors; an error there comes with the first item."""
        return _Items(self, ranks, call)

    def stacks(self, ranks: Sequence[int], lookouts: Lookouts | None = None) -> dict[int, str]:
        """Where some of them are, as `faulthandler` shows it; those that do not answer are left out."""
        return stacks_of({rank: self.hellos[rank] for rank in ranks if rank < len(self.hellos)}, lookouts)

    def close(self) -> None:
        """Kill the actors."""
        import ray

        if ray.is_initialized():  # else they have ended with the cluster, or this program's part in it
            for actor in self.actors:
                ray.kill(actor)

    def __reduce__(self) -> tuple[Any, ...]:
        return RayWorkers, (self.actors, self.hellos, self.group, self.kind_name)


class RayPending(Pending):
    """The replies of actors, by reference.

    Args:
        call: that was made.
        refs: of the replies.
        ranks: that give them.
        workers: whose they are.
    """

    is_remote = True

    def __init__(self, call: Call, refs: Sequence[Any], ranks: Sequence[int], workers: RayWorkers) -> None:
        super().__init__(call)
        self.refs = list(refs)
        self.ranks = tuple(ranks)
        self.workers = workers

    def values(self, deadline: float | None = None) -> list[Any]:
        """What the actors have returned, as it is.

        Raises:
            WorkerGroupError: one has failed.
            CallTimeoutError: not all have answered.
        """
        import ray

        if not ray.is_initialized():
            raise WorkerGroupError(
                f"[turnout driver caller: {self.call.caller}] {self.call.label}: this program has left the Ray cluster "
                "before the result was read"
            )
        lookouts = None
        try:
            if deadline is not None and (early_s := min(_LOOK_OUT_S, (deadline - time.monotonic()) / 2)) > _NO_TIME_S:
                lookouts = self._look_out(deadline, early_s)
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            returned: list[Any] = ray.get(self.refs, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            failure = self._timed_out(deadline, lookouts)
        except ray.exceptions.RayError as error:
            failure = self._failed(error)
        else:
            return returned
        raise failure  # outside of the handlers, as what Ray says has been said

    def replies(self, deadline: float | None, places: Sequence[int] | None) -> list[Reply]:
        """All replies, with the values of some."""
        replies = [Reply(*each) for each in self.values(deadline)]
        wanted = range(len(replies)) if places is None else places
        stored = [place for place in wanted if replies[place].stored is not None]
        if stored:
            import ray

            try:
                for place in stored:
                    replies[place] = fetched(replies[place])
            except ray.exceptions.RayError as error:
                failure = self._failed(error)
            else:
                return replies
            raise failure
        return replies

    def is_done(self) -> bool:
        """Whether all have answered, or one has failed."""
        import ray

        if not self.refs:
            return True
        if not ray.is_initialized():  # which asking would change
            return False
        ready, pending = ray.wait(self.refs, num_returns=len(self.refs), timeout=0, fetch_local=False)
        return not pending or bool(self._failures(ready))

    def _failures(self, ready: Sequence[Any]) -> dict[int, BaseException]:
        import ray

        failures: dict[int, BaseException] = {}
        for rank, ref in zip(self.ranks, self.refs, strict=True):
            if ref in ready:
                try:
                    ray.get(ref)
                except ray.exceptions.RayError as error:
                    failures[rank] = error
        return failures

    def _failed(self, error: BaseException) -> BaseException:
        """The error for the caller: the first failure that is known, with the others beside it."""
        import ray

        ready, pending = ray.wait(self.refs, num_returns=len(self.refs), timeout=0, fetch_local=False)
        for ref in pending:  # Ray prints errors that nobody has looked at
            ref.future().add_done_callback(_looked_at)
        causes: dict[int, BaseException] = {}
        origins: dict[int, tuple[float, Origin]] = {}
        seen: set[bytes] = set()
        for rank, failure in self._failures(ready).items():
            told = _told_cause(failure)
            if told is None:
                causes[rank], origins[rank] = self._death(rank, failure)
            elif told.error not in seen:  # what has come from another call has failed all that were to get it
                seen.add(told.error)
                causes[rank] = unpacked_error(told.error)
                origins[rank] = told.at, Origin(*told.origin)
        if not causes:  # a value that is lost, and no reply
            rank = self.ranks[0]
            causes[rank], origins[rank] = self._death(rank, error)
        first = min(origins, key=lambda rank: origins[rank][0])
        return told_error(causes[first], origins[first][1], causes)

    def _death(self, rank: int, error: BaseException) -> tuple[BaseException, tuple[float, Origin]]:
        """What there is to say of a rank whose process has ended, or of an error of Ray's own."""
        import ray

        hello = self.workers.hellos[rank] if rank < len(self.workers.hellos) else None
        place = Whereabouts("", hello.address, hello.pid) if hello is not None else Whereabouts("", "unknown", 0)
        if isinstance(error, ray.exceptions.RayActorError):
            text = f"rank {rank} of group {self.workers.group!r} {told_of(error, place, '')}"
        else:
            text = f"rank {rank} of group {self.workers.group!r}: {error}"
        origin = Origin(self.call.label, self.workers.group, rank, place.address, place.pid, "", self.call.caller)
        return WorkerGroupError(text), (time.time(), origin)

    def _look_out(self, deadline: float, early_s: float) -> Lookouts | None:
        """Wait until not all may answer in time; then have other nodes get ready to say where theirs are."""
        import ray

        try:
            ray.get(self.refs, timeout=max(0.0, deadline - early_s - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            hellos = dict(enumerate(self.workers.hellos))
            return Lookouts({rank: hellos[rank] for rank in self.ranks if rank in hellos}, early_s)
        return None

    def _timed_out(self, deadline: float | None, lookouts: Lookouts | None) -> BaseException:
        import ray

        ready, pending = ray.wait(self.refs, num_returns=len(self.refs), timeout=0, fetch_local=False)
        if failures := self._failures(ready):
            return self._failed(next(iter(failures.values())))
        hanging = [rank for rank, ref in zip(self.ranks, self.refs, strict=True) if ref in pending]
        call = self.call
        is_own = call.timeout_s is not None and deadline == call.deadline
        asked = f"timeout={call.timeout_s:g} s of the method" if is_own else "the timeout of result()"
        hellos = self.workers.hellos
        places = ", ".join(f"rank {rank} on node {hellos[rank].address} (pid {hellos[rank].pid})" for rank in hanging)
        stacks = self.workers.stacks(hanging, lookouts)
        where = merged({rank: where_of(stacks.get(rank, "")) for rank in hanging})
        error = CallTimeoutError(
            f"[turnout driver caller: {call.caller}] {call.label} on group {self.workers.group!r}: {len(hanging)} of "
            f"{len(self.ranks)} worker(s) have not answered within {asked}: {places}\n{where}"
        )
        error.call, error.is_final = call, is_own
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        call = self.call
        again = Call(call.name, call.label, call.group, call.caller)
        return RayPending, (again, self.refs, self.ranks, self.workers)


class _Items(ItemSource):
    def __init__(self, workers: RayWorkers, ranks: Sequence[int], call: Call) -> None:
        self._workers = workers
        self._ranks = list(ranks)
        self._number = os.urandom(8).hex()
        self._begun = [workers.actors[rank].iterate.remote(self._number, call.caller) for rank in ranks]

    def step(self, call: Call) -> tuple[Pending, list[int]]:
        begun, self._begun = self._begun, []
        if begun:
            RayPending(call, begun, self._ranks, self._workers).values()
        refs = [self._workers.actors[rank].item.remote(self._number, call.caller) for rank in self._ranks]
        return _told(RayPending(call, refs, self._ranks, self._workers)), self._ranks

    def close(self) -> None:
        for rank in self._ranks:
            self._workers.actors[rank].forget.remote(self._number)


def _wires(call: Call, parts: Sequence[Part]) -> Iterator[Any]:
    """Parts as they are sent; what all of them share is stored once if it is large."""
    first = parts[0] if parts else None
    if first is not None and len(parts) > 1 and all(part.args is first.args for part in parts[1:]):
        wire = [call.name, call.caller, list(first.args), first.kwargs, None, 0, None]
        if size_of((first.args, first.kwargs), _SHARED_FROM) >= _SHARED_FROM:
            import ray

            stored = ray.put(wire)
            yield from (stored for _ in parts)
            return
    for part in parts:
        yield [call.name, call.caller, list(part.args), part.kwargs, part.num_items, part.num_copies, None]


def _slotted(value: Any, lazies: list[LazyCollect[Any]]) -> Any:
    """Arguments with slots for what has still to be computed, which is added to ``lazies``."""
    if isinstance(value, SlicedLater):
        return Slot(_index(value.later, lazies), value.name)
    if isinstance(value, Later):
        return Slot(_index(value, lazies), None)
    if isinstance(value, dict):
        return {key: _slotted(each, lazies) for key, each in value.items()}
    if is_namedtuple(value):
        return type(value)(*(_slotted(each, lazies) for each in value))
    if isinstance(value, (list, tuple)) and len(value) <= LONGEST:
        slotted = [_slotted(each, lazies) for each in value]
        return tuple(slotted) if isinstance(value, tuple) else slotted
    return value


def _index(lazy: Any, lazies: list[LazyCollect[Any]]) -> int:
    for index, known in enumerate(lazies):
        if known is lazy:
            return index
    lazies.append(lazy)
    return len(lazies) - 1


def _told_cause(error: BaseException) -> WorkerFailed | None:
    """What a worker has raised, from what Ray has made of it."""
    cause = getattr(error, "cause", None)
    while cause is not None and not isinstance(cause, WorkerFailed):
        cause = getattr(cause, "cause", None)
    return cause


def _told(pending: RayPending) -> RayPending:
    """Have the notifier told as soon as a call fails, if there is one."""
    world = current_world()
    if world.has_notifier:
        for ref in pending.refs:
            ref.future().add_done_callback(functools.partial(_done, pending))
    return pending


def _looked_at(future: Any) -> None:
    future.exception()


def _done(pending: RayPending, future: Any) -> None:
    """On a thread of Ray's, which is not kept."""
    world = current_world()
    if future.exception() is not None:
        world.look_at(pending)
    else:
        for message in Reply(*future.result()).messages:
            world.notify(message)


@functools.cache
def _actor_class() -> Any:  # Any: Ray's own
    """As Ray takes it; made once, as each that is made anew is sent to the cluster anew."""
    import ray

    return ray.remote(GroupActor)
