"""`LocalTorchController`: a rank in each process that torchrun has started, all of which run the whole program.

Rank 0 leads: a thread of its process is the coordinator, and it alone writes the run's own files. The ranks find it
through torchrun's store. Nobody is placed here and nobody can be killed from here: a rank that fails tells the others,
waits a moment so that they can end in order, and raises; torchrun does the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import pickle
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from turnout.controllers.base import Controller, Outcome, RunSpec, Sink, Traits, Worker
from turnout.controllers.coordinator import Coordinator
from turnout.controllers.interrupts import signals_handled
from turnout.controllers.travel import packed_error, unpacked_error
from turnout.controllers.wire import DRIVERS, Address, WireChannel
from turnout.data.shards import check_datasets
from turnout.environment import TorchrunVariables
from turnout.errors import ControllerError, MissingDependencyError, UsageError, WorkerGroupError
from turnout.session.channel import ExchangeKind
from turnout.session.collective import ChannelCollective, Collective
from turnout.session.events import Died, Failed, Finished, RankInfo, Reported, Started, WorkerEvent

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["LocalTorchController"]

logger = logging.getLogger(__name__)

_UNWIND_S = 3.0  # for the other ranks to end in order, once one has failed
_JOIN_S = 300.0  # for all ranks to call `fit()`
_LOOK_S = 10.0  # between looks for an interrupt while waiting in torch's store, which cannot be interrupted

# Every `fit()` of a process has a number, the same on all ranks, so that the store's keys of one are not another's.
_fit_numbers = itertools.count()


class LocalTorchController(Controller):
    """Runs the train function in this process, as one of the ranks that torchrun has started.

    Raises:
        UsageError: the run could not be found again after a restart, or the variables cannot be meant.
        ControllerError: the ranks do not find each other.
    """

    name: ClassVar[str] = "torchrun"
    traits: ClassVar[Traits] = Traits(
        isolates_workers=False,
        forms_group=True,
        restartable=False,
        resizable=False,
        multi_node=True,
        ray_data=False,
        runs_driver_per_rank=True,
    )

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        variables = TorchrunVariables.read()
        if variables is None:
            raise UsageError("the controller 'torchrun' is for processes that torchrun has started; start them with it")
        _refuse_what_a_restart_would_break(spec, variables)
        self.attempts_before = variables.restart_count
        self._ranks = RankInfo(
            rank=variables.rank,
            world_size=variables.world_size,
            local_rank=variables.local_rank,
            local_world_size=variables.local_world_size,
            node_rank=variables.rank // variables.local_world_size,
        )
        check_datasets(spec.datasets, spec.dataset_config, world_size=variables.world_size, ray_error=UsageError)
        self._is_stored = spec.run_config.storage_path is not None
        self._leader: _Leader | None = None
        with contextlib.ExitStack() as cleanup:
            store = _store_of_fit(variables, next(_fit_numbers))
            if self._ranks.rank == 0:
                self._leader = _Leader(spec, self._ranks)
                cleanup.callback(self._leader.close)
                store.set("coordinator", pickle.dumps(self._leader.address_from(variables.master_addr)).hex())
            address = _awaited(store, spec.run_config.start_timeout_s or _JOIN_S)
            self._channel = WireChannel(address, self._ranks)
            cleanup.callback(self._channel.close)
            self._channel.answer_where()
            self._drivers = ChannelCollective(self._channel.branch(DRIVERS))
            self.spec = self._drivers.broadcast("fit", _Names.of(spec)).applied_to(
                spec, is_restart=variables.restart_count > 0
            )
            self._cleanup = cleanup.pop_all()

    @property
    def drivers(self) -> Collective:
        """The programs of all ranks."""
        return self._drivers

    def run_attempt(self, worker: Worker, sink: Sink) -> Outcome:
        """Call the worker, and agree with the other ranks on how the attempt has ended."""
        words = _LastWords()

        def take(event: WorkerEvent) -> None:
            if not words.take(event) and self._is_stored:
                sink(event)

        channel = _Channel(self._channel, None if self._is_stored else sink)
        try:
            with contextlib.ExitStack() as handlers:
                if self._leader is not None:
                    self._leader.coordinator.sink = take
                    handlers.enter_context(self._leader.signals_handled())
                worker(channel)
        finally:
            for event in self._agreed(words, channel.last_word):
                sink(event)
        return Outcome()

    def abort(self, reason: str, grace_s: float) -> None:
        """Break every wait of the attempt."""
        if self._leader is not None:
            self._leader.abort(reason)

    def close(self) -> None:
        """Hang up; the leader waits a moment for the others to do so first, as they may still be reading."""
        self._cleanup.close()

    def _agreed(self, words: _LastWords, own: Failed | Finished | None) -> list[WorkerEvent]:
        """The last words of the ranks, the same on all of them and the first cause first."""
        try:
            self._drivers.barrier("the end of the attempt")
            if not self._is_stored:
                words.finished.clear()  # every rank has its own result
            words = self._drivers.broadcast("how the attempt ended", words.packed()).unpacked()
        except (WorkerGroupError, OSError) as error:
            logger.debug("the ranks could not agree on how the attempt ended: %s", error)
            words = _LastWords(words.failures, words.finished if self._is_stored else None)
        return words.with_own(own)


class _Names(NamedTuple):
    """What rank 0 alone can choose, since it is chosen anew in each process."""

    run_id: str
    name: str

    @classmethod
    def of(cls, spec: RunSpec) -> _Names:
        return cls(spec.run_id, spec.name)

    def applied_to(self, spec: RunSpec, *, is_restart: bool) -> RunSpec:
        run_config = dataclasses.replace(spec.run_config, name=self.name)
        if is_restart and run_config.on_existing == "error":  # it is this very job's
            run_config = dataclasses.replace(run_config, on_existing="resume")
        return dataclasses.replace(spec, run_id=self.run_id, run_config=run_config)


class _LastWords:
    """How the ranks have ended, as far as it is known, in the order in which it came."""

    def __init__(self, failures: list[Failed] | None = None, finished: list[Finished] | None = None) -> None:
        self.failures = failures or []
        self.finished = finished or []

    def take(self, event: WorkerEvent) -> bool:
        """Keep an event, if it is one of these."""
        if isinstance(event, Died):
            event = Failed(event.rank, WorkerGroupError(f"rank {event.rank} {event.reason}"), "")
        if isinstance(event, Failed):
            self.failures.append(event)
        elif isinstance(event, Finished):
            self.finished.append(event)
        return isinstance(event, (Failed, Finished))

    def packed(self) -> _LastWords:
        """As they travel."""
        packed: Any = [each._replace(error=packed_error(each.error)) for each in self.failures]  # type: ignore[arg-type]
        return _LastWords(packed, self.finished)

    def unpacked(self) -> _LastWords:
        """As they were."""
        unpacked: Any = [each._replace(error=unpacked_error(each.error)) for each in self.failures]  # type: ignore[arg-type]
        return _LastWords(unpacked, self.finished)

    def with_own(self, own: Failed | Finished | None) -> list[WorkerEvent]:
        """As events; this rank's own is the one that has not travelled, which has its frames or its very value."""
        words: list[WorkerEvent] = [*self.failures, *self.finished]
        if own is None:
            return words
        if not any(type(each) is type(own) and each.rank == own.rank for each in words):
            return [*words, own]
        return [own if type(each) is type(own) and each.rank == own.rank else each for each in words]


class _Channel:
    """A rank's channel: the wire, but in memory every rank is its own driver, and takes its events itself."""

    def __init__(self, wire: WireChannel, sink: Sink | None) -> None:
        self.ranks = wire.ranks
        self.notice = None  # torchrun is told of none
        self.branch = wire.branch
        self.last_word: Failed | Finished | None = None
        self._wire = wire
        self._sink = sink

    def publish(self, event: WorkerEvent) -> None:
        if isinstance(event, (Failed, Finished)):
            self._say(event)
        elif self._sink is None:
            self._wire.publish(event)
        elif isinstance(event, Started):
            self._sink(Started(0, event.worker._replace(ranks=RankInfo())))
        elif isinstance(event, Reported):
            self._sink(event._replace(rank=0))

    def exchange(
        self,
        tag: str,
        value: Any,  # Any: passes through
        how: ExchangeKind,
        event: Reported | None = None,
    ) -> Any:
        if event is None or self._sink is None:
            return self._wire.exchange(tag, value, how, event)
        answer = self._wire.exchange(tag, value, how)
        if all(each is None for each in answer):
            self.publish(event)
        return answer

    def _say(self, word: Failed | Finished) -> None:
        self.last_word = word
        told = word
        if self._sink is not None and isinstance(word, Finished):
            self.last_word, told = Finished(0, word.value), Finished(word.rank, None)
        with contextlib.suppress(OSError):  # nobody is there any more to hear it, and this program raises it itself
            self._wire.publish(told)


class _Leader:
    """Rank 0's coordinator, and the thread that it works on.

    Args:
        spec: of the run.
        ranks: rank 0's.
    """

    def __init__(self, spec: RunSpec, ranks: RankInfo) -> None:
        self._is_one_node = ranks.local_world_size == ranks.world_size
        self._run_name = spec.name
        self._is_over = threading.Event()
        self._is_ending = False
        self._gave_up = False
        self.coordinator = Coordinator(
            ranks.world_size,
            lambda event: None,
            address="127.0.0.1" if self._is_one_node else "0.0.0.0",
            stall_timeout_s=spec.run_config.stall_timeout_s,
            fails_on_stall=spec.run_config.stall_action == "fail",
            on_break=self._give_up_later,
            on_disconnect=self._lost,
        )
        self._thread = threading.Thread(
            target=self.coordinator.serve, args=(self._is_done,), name="turnout-coordinator", daemon=True
        )
        self._thread.start()

    def address_from(self, host: str) -> Address:
        """Where the ranks find it: on this machine if they are all here, else at rank 0's host."""
        place = self.coordinator.address.place
        assert isinstance(place, tuple), "it listens on a port"
        port = place[1]
        return Address(("127.0.0.1" if self._is_one_node else host, port), self.coordinator.address.key)

    def signals_handled(self) -> contextlib.AbstractContextManager[None]:
        """SIGUSR1 shows where all ranks are; an interrupt stays what it is."""
        return signals_handled(on_interrupt=None, on_ask=self.coordinator.show_stacks, wake_fd=self.coordinator.wake_fd)

    def abort(self, reason: str) -> None:
        """Break every wait of the attempt; from any thread."""
        self.coordinator.call_soon(lambda: self.coordinator.abort(reason))

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()
        self.coordinator.wake()
        self._thread.join()
        self.coordinator.close()

    def _is_done(self) -> bool:
        if self._is_over.is_set() and not self._is_ending:
            self._is_ending = True
            # Those who have not come to the end of the attempt in time have been waited for already.
            patience_s = 0.0 if self._gave_up else _UNWIND_S
            self.coordinator.call_in(patience_s, self.coordinator.hang_up)
        return self._is_ending and not self.coordinator.connected

    def _give_up_later(self, reason: str) -> None:
        # At once, as torchrun may end this process before its train function has unwound.
        logger.error("run %r cannot go on: %s", self._run_name, reason)

        def give_up() -> None:
            self._gave_up = True
            self.coordinator.break_drivers(f"it did not end after {reason}")

        self.coordinator.call_in(_UNWIND_S, give_up)

    def _lost(self, rank: int) -> None:
        self.coordinator.died(rank, "is gone: its process has ended, or its machine cannot be reached")


def _refuse_what_a_restart_would_break(spec: RunSpec, variables: TorchrunVariables) -> None:
    run = spec.run_config
    if run.failure_config is not None and run.failure_config.max_failures and variables.rank == 0:
        logger.warning(
            "FailureConfig.max_failures=%d has no effect under torchrun, which restarts all ranks itself: use its "
            "option --max-restarts",
            run.failure_config.max_failures,
        )
    if run.storage_path is None or variables.max_restarts == 0:
        return
    if not spec.is_named:
        raise UsageError(
            f"torchrun may restart this job (--max-restarts {variables.max_restarts}), and a restart could not find "
            "the run's checkpoints, as it has no name; pass RunConfig(name=...)"
        )
    if run.on_existing == "overwrite":
        raise UsageError(
            f"on_existing='overwrite': torchrun may restart this job (--max-restarts {variables.max_restarts}), and a "
            "restart would overwrite the job's own checkpoints; remove the old run's folder, or give this one a name"
        )


@functools.cache
def _store(variables: TorchrunVariables) -> Store:
    """The store by which torchrun's processes meet; for good, as it may be rank 0's process that serves it."""
    try:
        from torch.distributed import rendezvous  # type: ignore[attr-defined]  # re-exported without saying so
    except ImportError as error:
        raise MissingDependencyError("torch", "pip install torch", "training under torchrun") from error
    store: Store
    store, _, _ = next(rendezvous("env://", variables.rank, variables.world_size, timeout=timedelta(seconds=_JOIN_S)))
    return store


def _store_of_fit(variables: TorchrunVariables, number: int) -> Store:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # as below

    store: Store = PrefixStore(f"turnout/{variables.restart_count}/{number}", _store(variables))
    return store


def _awaited(store: Store, timeout_s: float) -> Address:
    from torch.distributed import DistStoreError

    deadline = time.monotonic() + timeout_s
    while True:
        try:
            store.wait(["coordinator"], timedelta(seconds=_LOOK_S))
            address: Address = pickle.loads(bytes.fromhex(store.get("coordinator").decode()))
            return address
        except DistStoreError as error:
            if time.monotonic() >= deadline:
                raise ControllerError(
                    f"rank 0 has not come to this fit() within {timeout_s:g} s (RunConfig.start_timeout_s); every rank "
                    "must call fit() the same number of times"
                ) from error
