"""`Group`: the actors of one attempt, from asking for them to the end of the last one's process."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from turnout.cluster.connection import DriverNode
from turnout.cluster.devices import visible_devices
from turnout.cluster.notices import deaf_nodes, draining_nodes
from turnout.cluster.placement import Bundles
from turnout.cluster.processes import kill_actor_process
from turnout.cluster.seats import Whereabouts, seated
from turnout.cluster.shortage import shortage_of, spare_beside
from turnout.config import FailureConfig, PreemptionInfo
from turnout.controllers.base import RunSpec, Sink
from turnout.controllers.coordinator import Coordinator
from turnout.controllers.output import RankOutput
from turnout.controllers.ray.actor import RankActor
from turnout.controllers.ray.deaths import cause_of, has_gone_with_node, stays, told_of
from turnout.controllers.serving import ServedGroup
from turnout.controllers.work import Launch, working_directory
from turnout.data.site import Site
from turnout.environment import own_variables
from turnout.errors import ControllerError, ResourceError, TurnoutError
from turnout.first_imports import first_imports
from turnout.session.events import RankInfo

__all__ = ["CannotStartError", "Group", "OtherSizeError", "Room"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_UNWIND_S = 3.0  # for ranks to unwind once the attempt has failed
_LINGER_S = 0.0005  # a report of two ranks takes a part of a millisecond
_EXIT_S = 10.0  # for ranks to say that they are through once all have said their last word
_GONE_S = 2.0  # for processes to be gone once they are killed; a child may hold a rank's connection
_DEAF_S = 0.5  # for a process to end that Ray has told to
_UNANSWERED_S = 20.0  # for Ray to say that processes that were killed have ended
_HUNG_UP_S = 5.0  # for Ray to say how a rank has ended that has hung up
_NODE_S = 0.5  # for Ray to say how a rank has ended, until it is seen whether its node is there at all
_NOTICE_S = 5.0  # between two questions for nodes that will be taken away
_FIRST_LOOK_S = 2.0  # at why the workers have not come
_LOOK_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Where the actors of a group are placed.

    Args:
        size: how many there are.
        options: the options of each, by number.
        bundles: what they take, for messages.
        is_placed: whether the cluster has set it aside for them.
        may_be_refused: whether a request above the whole cluster is an error; else it is waited for.
        better_size: how many workers there would better be, as the cluster is now; ``size`` where that does not change.
        look_s: seconds between two looks at whether there is room for more, once the workers run.
        is_outdated: whether the group would be placed elsewhere now, if it is not placed yet.
        watches_nodes: have an eye on the nodes of the workers: on notices that they go, and on their loss.
    """

    size: int
    options: Callable[[int], dict[str, Any]]  # Any: Ray's own options
    bundles: Bundles
    is_placed: Callable[[], bool]
    may_be_refused: bool = False
    better_size: Callable[[], int] | None = None
    look_s: float = 60.0
    is_outdated: Callable[[], bool] = lambda: False
    watches_nodes: bool = False


class CannotStartError(ControllerError):
    """A worker could not be started, for a cause that another attempt would meet too."""


class OtherSizeError(Exception):
    """The workers have not come, and another number of them could, or they could elsewhere."""


class Group(ServedGroup):
    """The ranks of one attempt, or the one process that runs beside them.

    Args:
        spec: of the run.
        node: of this program.
        sink: takes the ranks' events.
        room: where they are placed.
        preload: modules that their processes import first.
    """

    def __init__(self, spec: RunSpec, node: DriverNode, sink: Sink, room: Room, preload: Sequence[str]) -> None:
        super().__init__()
        self.was_preempted = False
        """Whether it has ended because nodes were taken away of which it was told before."""
        self._spec = spec
        self._node = node
        self._room = room
        self._preload = preload
        backend_config = spec.backend_config
        self._shows_all_gpus = backend_config is not None and backend_config.shows_all_gpus
        self._work: Any = None  # Any: bytes, or Ray's reference to them
        self._deal: Callable[[Site], Sequence[Any]] | None = None
        self._actors: list[Any] = []  # Any: Ray's handles have no types of ours
        self._places: dict[int, Whereabouts] = {}
        """Of the workers that have come, by number."""
        self._seats: list[int] = []
        """The worker of each rank, once all have come."""
        self._running: set[int] = set()
        """The ranks whose processes run."""
        self._asks = ThreadPoolExecutor(1, "turnout-asks")
        """What is asked of Ray that may take its time; the thread is begun with the first question."""
        self._draining: dict[str, int | None] = {}
        """The nodes of ranks that will be taken away, and when."""
        self._notice: PreemptionInfo | None = None
        self._taken: set[int] = set()
        """The ranks that have died with a node that was taken away."""
        self._outputs = [RankOutput(rank, sink) for rank in range(room.size)]
        self._error: Exception | None = None
        """Why the group has not come up."""
        self._num_beyond = 0
        self._num_looks = 0
        self._is_leaving = False
        """All have said their last word."""
        self._is_killing = False
        self._is_ending = False
        """No process has anything to do any more."""
        self._is_over = False
        self._coordinator = Coordinator(
            room.size,
            sink,
            address=node.address,
            stall_timeout_s=spec.run_config.stall_timeout_s,
            fails_on_stall=spec.run_config.stall_action == "fail",
            linger_s=_LINGER_S,
            on_break=lambda reason: self._unwind(_UNWIND_S),
            on_disconnect=self._hung_up,
            on_output=lambda rank, data: self._outputs[rank].take(data),
        )

    @staticmethod
    @functools.cache
    def actor_class() -> Any:  # Any: Ray's own
        """The actors' class, as Ray takes it."""
        import ray

        return ray.remote(RankActor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._asks.shutdown()
        self._coordinator.close()
        for output in self._outputs:
            output.finish()

    @property
    def has_ended_well(self) -> bool:
        """Whether every rank has run to a good end."""
        return self._is_ending and self._coordinator.broken is None and not self.was_interrupted

    @property
    def was_resized(self) -> bool:
        """Whether its ranks were stopped because there is room for more of them."""
        return self._coordinator.has_stopped and not self.was_interrupted

    @property
    def told_of_preemption(self) -> str:
        """Which nodes were taken away, with which ranks, for people."""
        ranks = {*self._taken, *(self._notice.preempted_ranks if self._notice is not None else ())}
        nodes: dict[tuple[str, str], list[str]] = {}
        for rank in sorted(ranks):
            place = self._places[self._seats[rank]]
            nodes.setdefault((place.address, place.node_id[:8]), []).append(str(rank))
        told = [f"node {at} ({node}) with rank(s) {', '.join(each)}" for (at, node), each in nodes.items()]
        return f"{' and '.join(told)}: taken away by its owner, of which Ray was told before"

    def start(self, work: bytes, deal: Callable[[Site], Sequence[Any]] | None = None) -> None:  # Any: travels only
        """Ask for every worker, to do ``work``, each with what ``deal`` gives for it once all have come."""
        actor_class = self.actor_class()
        for worker in range(self._room.size):
            actor = actor_class.options(**self._room.options(worker), max_concurrency=2).remote(
                self._preload, first_imports()
            )
            self._actors.append(actor)
            self._when_done(actor.whereabouts.remote(), functools.partial(self._arrived, worker))
        self._work = work
        self._deal = deal
        self._coordinator.call_in(_FIRST_LOOK_S, self._look)
        limit_s = self._spec.run_config.start_timeout_s
        if limit_s is not None:
            self._coordinator.call_in(limit_s, lambda: self._give_up_start(limit_s))

    def serve(self, timeout_s: float | None = None) -> None:
        """Carry messages until no rank is left; those that still are after ``timeout_s`` are killed.

        Raises:
            ControllerError: the group has not come up.
            ResourceError: the cluster cannot hold it, or has not in time.
        """
        if timeout_s is not None:
            self._coordinator.call_in(timeout_s, self._time_out)
        try:
            self._run_loop()
        except BaseException:
            self._kill()
            raise
        if self._error is not None:
            raise self._error

    def abort(self, reason: str, grace_s: float) -> None:
        """From any thread."""

        def end() -> None:
            if not self._seats:
                self._fail_start(ControllerError(f"the run was aborted: {reason}"))
                return
            self._coordinator.abort(reason)
            self._unwind(grace_s)

        self._coordinator.call_soon(end)

    def _when_done(self, ref: Any, then: Callable[[Any, BaseException | None], None]) -> None:  # Any: Ray's reference
        """Have ``then`` called in the loop with what a call has given, or failed with; Ray tells of it by itself."""

        def done(future: Any) -> None:
            error = future.exception()
            value = None if error is not None else future.result()
            self._coordinator.call_soon(lambda: then(value, error))

        ref.future().add_done_callback(done)

    def _ask(self, question: Callable[[], _T], then: Callable[[_T], None]) -> None:
        """Have ``then`` called in the loop with the answer, if there is one."""

        def done(future: Future[_T]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._coordinator.call_soon(lambda: then(future.result()))

        self._asks.submit(question).add_done_callback(done)

    # -- the start

    def _arrived(self, worker: int, place: Whereabouts, error: BaseException | None) -> None:
        if self._is_over or self._seats:
            return
        if error is not None:
            kind = CannotStartError if stays(error) else ControllerError
            self._fail_start(kind(f"worker {worker} could not be started: {cause_of(error)}"), error)
            return
        self._places[worker] = place
        if len(self._places) == self._room.size:
            self._launch()

    def _launch(self) -> None:
        """All have come, so it is known who is who: let them begin."""
        import ray

        places = [self._places[worker] for worker in range(self._room.size)]
        seats = seated(places, self._node.node_id)
        self._seats = [seat.worker for seat in seats]
        nodes = [places[seat.worker].node_id for seat in seats]
        try:
            shares = [] if self._deal is None else self._deal(_site_of(self._room.bundles, nodes))
        except TurnoutError as error:
            self._fail_start(error)
            return
        ranks = [
            RankInfo(rank, len(seats), seat.local_rank, seat.local_world_size, seat.node_rank)
            for rank, seat in enumerate(seats)
        ]
        launch = Launch(
            ranks=ranks,
            address=self._coordinator.address,
            work=self._work,
            environment=own_variables() | {"MASTER_ADDR": places[self._seats[0]].address},
            directory=working_directory(),
            arguments=list(sys.argv),
            path=[os.path.abspath(each) for each in sys.path],
            gpus=visible_devices(places, seats, shows_all=self._shows_all_gpus),
            shares=shares,
        )
        if self._room.better_size is not None:
            self._coordinator.call_in(self._room.look_s, self._look_for_more)
        if self._room.watches_nodes:
            self._ask_for_notices()
        shared = ray.put(launch)
        self._running = set(range(len(seats)))
        for rank, worker in enumerate(self._seats):
            ref = self._actors[worker].run.remote(shared, rank)
            self._when_done(ref, functools.partial(self._ended, rank))

    def _fail_start(self, error: Exception, cause: BaseException | None = None) -> None:
        if self._error is None:
            error.__cause__ = cause
            self._error = error
        self._kill()
        self._is_over = True

    def _give_up_start(self, limit_s: float) -> None:
        if not self._seats:
            text = f"the workers have not come within RunConfig.start_timeout_s={limit_s:g}: {self._told_of_waiting()}"
            self._fail_start(ResourceError(text))

    def _look(self) -> None:
        """See why the workers have not come, and tell."""
        if self._seats or self._is_over:
            return
        self._num_looks += 1
        is_placed = self._room.is_placed()
        if not is_placed and (self._better_size() != self._room.size or self._room.is_outdated()):
            self._fail_start(OtherSizeError())
            return
        if self._room.may_be_refused and not self._places and not is_placed:
            shortage = shortage_of(self._room.bundles)
            # Twice, as a node may be about to join.
            self._num_beyond = self._num_beyond + 1 if shortage.is_beyond else 0
            if self._num_beyond > 1:
                text = f"the cluster cannot hold the workers of run {self._spec.name!r}, and will not grow"
                self._fail_start(ResourceError(f"{text}: {shortage.text}"))
                return
        if self._num_looks > 1:
            logger.warning("run %r waits for its workers: %s", self._spec.name, self._told_of_waiting())
        self._coordinator.call_in(_LOOK_S, self._look)

    def _better_size(self) -> int:
        return self._room.size if self._room.better_size is None else self._room.better_size()

    def _look_for_more(self) -> None:
        """Have the ranks stop at their next report if there is room for more of them."""
        if self._is_leaving or self._coordinator.broken is not None or self.was_interrupted:
            return
        size = self._better_size()
        if size > self._room.size:
            logger.info("run %r grows from %d to %d workers", self._spec.name, self._room.size, size)
            self._coordinator.stop(f"the run goes on with {size} workers")
        else:
            self._coordinator.call_in(self._room.look_s, self._look_for_more)

    def _told_of_waiting(self) -> str:
        if self._places:
            return f"{len(self._places)} of {self._room.size} are there"
        if self._room.is_placed():
            return "the cluster has set aside what they take, and their processes are being started"
        return shortage_of(self._room.bundles).text

    # -- nodes that go

    def _ask_for_notices(self) -> None:
        """Ray tells of them only whoever asks."""
        if not self._is_leaving and not self._is_ending and self._coordinator.broken is None:
            self._ask(draining_nodes, self._take_notices)
            self._coordinator.call_in(_NOTICE_S, self._ask_for_notices)

    def _take_notices(self, draining: Mapping[str, int | None]) -> None:
        """Tell the ranks which of their nodes go, at their next meeting, and end the attempt when the time has come."""
        nodes: dict[str, list[int]] = {}
        for rank, worker in enumerate(self._seats):
            nodes.setdefault(self._places[worker].node_id, []).append(rank)
        self._draining |= {node: draining[node] for node in nodes if node in draining}
        deadline_ms = min((each for each in self._draining.values() if each is not None), default=None)
        notice = PreemptionInfo(deadline_ms, {node: nodes[node] for node in self._draining})
        if not self._draining or notice == self._notice:
            return
        self._notice = notice
        self._coordinator.notify(notice)
        left_s = None if deadline_ms is None else max(0.0, deadline_ms / 1000 - time.time())
        grace_s = (self._spec.run_config.failure_config or FailureConfig()).preemption_grace_s
        when = "soon" if left_s is None else f"in {left_s:.0f} s"
        logger.warning("run %r: %s; it goes %s", self._spec.name, self.told_of_preemption, when)
        if left_s is not None or grace_s:
            self._coordinator.call_in((left_s or 0.0) + grace_s, self._preempt)

    def _preempt(self) -> None:
        """The nodes' time is over: end the attempt, wherever the ranks are."""
        if self._coordinator.broken is None and self._coordinator.unfinished and not self._is_killing:
            self.was_preempted = True
            self._coordinator.break_off(self.told_of_preemption)

    def _note_death(self, rank: int, error: BaseException | None = None) -> None:
        """A rank has died by itself: with its node, if that was to go or Ray says that it was taken."""
        was_told = self._notice is not None and rank in self._notice.preempted_ranks
        if (was_told or has_gone_with_node(error)) and not self._is_killing:
            self.was_preempted = True
            self._taken.add(rank)

    def _hung_up(self, rank: int) -> None:
        """Ray soon says how its process has ended, unless Ray's own on that node has too: see whether it is there.

        Ray itself takes half a minute for that.
        """
        self._coordinator.call_in(_HUNG_UP_S, lambda: self._give_up(rank))
        node = self._places[self._seats[rank]].node_id
        if self._room.watches_nodes and node != self._node.node_id:
            self._coordinator.call_in(_NODE_S, lambda: self._look_after(rank, node))

    def _look_after(self, rank: int, node: str) -> None:
        def lose(deaf: set[str]) -> None:
            if deaf and rank in self._running:
                self._lose(rank)

        if rank in self._running and not self._is_over:
            self._ask(lambda: deaf_nodes([node]), lose)

    def _lose(self, rank: int) -> None:
        """Its node is gone, so nobody will say how its process has ended."""
        self._running.discard(rank)
        if rank in self._coordinator.unfinished:
            place = self._places[self._seats[rank]]
            self._note_death(rank)
            self._outputs[rank].finish()
            how = f"(pid {place.pid} on node {place.address}) is lost with its node, where Ray does not answer"
            self._coordinator.died(rank, how, self._outputs[rank].shown())
        if not self._running:
            self._end()

    # -- ends

    @property
    def _has_ranks(self) -> bool:
        return bool(self._seats)

    def _is_done(self) -> bool:
        if self._seats and not self._is_leaving and not self._coordinator.unfinished:
            self._is_leaving = True
            self._coordinator.call_in(_EXIT_S, self._kill)
        return self._is_over or (self._is_ending and not self._coordinator.connected)

    def _ended(self, rank: int, _: None, error: BaseException | None) -> None:
        """The call that is a rank has ended, well or because its process has."""
        coordinator = self._coordinator
        self._running.discard(rank)
        coordinator.read_rest(rank)  # its last words may still be on the line
        if rank in coordinator.unfinished:
            if rank not in coordinator.come and not self._is_killing:
                node = self._places[self._seats[rank]].address
                text = f"rank {rank}, on node {node}, has not come to the driver at {self._node.address}"
                self._fail_start(ControllerError(f"{text}: {cause_of(error)}"), error)
                return
            self._note_death(rank, error)
            self._outputs[rank].finish()
            coordinator.died(rank, self._how(rank, error), self._outputs[rank].shown())
        if not self._running:
            self._end()

    def _how(self, rank: int, error: BaseException | None) -> str:
        if self._is_killing:
            return "was killed by the driver, as it did not end in time"
        return told_of(error, self._places[self._seats[rank]], self._coordinator.last_words(rank))

    def _end(self) -> None:
        """No rank has anything to say any more: see that their processes are gone."""
        self._is_ending = True
        self._kill_actors()
        self._coordinator.call_in(_GONE_S, self._leave)

    def _leave(self) -> None:
        self._is_over = True

    def _unwind(self, grace_s: float) -> None:
        """The attempt has failed: those who wait have been told; tell the others, and kill whoever stays."""
        for rank, worker in enumerate(self._seats):
            if rank in self._coordinator.unfinished and rank not in self._coordinator.told:
                self._actors[worker].end.remote()
        self._coordinator.call_in(grace_s, self._kill)

    def _time_out(self) -> None:
        self.was_timed_out = not self._is_ending
        self._kill()

    def _kill(self) -> None:
        """Kill every process, now; Ray then tells how each has ended, and its connection closes."""
        self._is_killing = True
        if not self._seats:
            self._is_over = True
        self._kill_actors()
        self._coordinator.call_in(_UNANSWERED_S, self._give_up_all)

    def _kill_actors(self) -> None:
        import ray

        for actor in self._actors:
            with contextlib.suppress(ray.exceptions.RayError):  # it is gone already
                ray.kill(actor)
        self._coordinator.call_in(_DEAF_S, self._kill_the_deaf)

    def _kill_the_deaf(self) -> None:
        """Ray asks a process to end itself; one that is stopped does not hear it."""
        for rank in self._coordinator.connected:
            place = self._places[self._seats[rank]]
            if place.node_id == self._node.node_id:
                kill_actor_process(place.pid, RankActor.__name__)

    def _give_up(self, rank: int) -> None:
        if rank in self._running:
            self._coordinator.died(rank, "has closed its connection to the driver, and Ray does not say how it ended")

    def _give_up_all(self) -> None:
        """Ray itself does not answer, so nothing more will be known."""
        for rank in self._running:
            self._coordinator.died(rank, "was killed by the driver, and Ray does not say that it ended")
        self._is_over = True


def _site_of(bundles: Bundles, nodes: Sequence[str]) -> Site:
    return Site(nodes=nodes, held=bundles.resources, spare=spare_beside(bundles, nodes))
