"""Runs a test's body on ranks, and tells what became of it on each: what the marker ``ranks`` of the plugin stands for.

The ranks are forked from the process track's warm server. Each has a session, as in a train function of a run in
memory, so `turnout.get_context`, `turnout.report` and `turnout.collective` work in a test's body. A rank that fails is
one that has ended: whoever waits for it is told so, and all others run on to their own ends, so that each has a failure
of its own to show.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from turnout.backends.torch import TorchConfig
from turnout.checks import check_integer, check_number, refused
from turnout.config import BackendConfig, DataConfig
from turnout.controllers.process.client import lent_server
from turnout.controllers.process.controller import preload_of
from turnout.controllers.travel import dumps, dumps_work, loads, packed_error, traceback_text, unpacked_error
from turnout.errors import UsageError, WorkerGroupError
from turnout.runtime.console import RankConsole
from turnout.runtime.keeping import MemoryKeeper
from turnout.runtime.traceback import is_turnouts
from turnout.runtime.worker import TrainWorker
from turnout.session import Channel
from turnout.session.events import Died, Failed, Finished, Log, WorkerEvent
from turnout.testing.assertions import Comparing
from turnout.testing.faults import Fault, with_faults
from turnout.testing.forked import forking

__all__ = ["RankTest", "Ranks", "RanksEnded", "WarmServer", "per_rank", "warm_server"]

_AFTER_FAILURE_S = 5.0  # for the other ranks to end once one has failed
# Many tests use these, and importing one takes longer than a test: the server has them if the test session has.
_LARGE = (
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.dataset",
    "pyarrow.fs",
    "pyarrow.parquet",
    "scipy",
    "sklearn",
    "torch",
    "torch.distributed",
)
# What pytest makes of its own process alone.
_BOUND_FIXTURES = (
    "capfd",
    "capfdbinary",
    "caplog",
    "capsys",
    "capsysbinary",
    "capteesys",
    "pytestconfig",
    "pytester",
    "recwarn",
    "request",
    "subtests",
)


class WarmServer:
    """What the server that forks a test session's ranks has imported, settled when the first test needs it."""

    def __init__(self) -> None:
        self._preload: frozenset[str] = frozenset()

    def start(self, modules: Sequence[str] = ()) -> None:
        """Start it, or one that has ``modules`` too; nothing happens if it has them already."""
        wanted = {"pytest", "turnout.testing.ranks", *modules}
        if wanted <= self._preload:
            return
        wanted |= {name for name in _LARGE if name in sys.modules}
        if "torch" in wanted:
            wanted |= {*preload_of(TorchConfig()), "turnout.controllers.local_torch", "turnout.torch"}
        self._preload |= wanted
        with lent_server(self._preload):
            pass


_WARM: pytest.StashKey[WarmServer] = pytest.StashKey()


def warm_server(config: pytest.Config) -> WarmServer:
    """That of the test session."""
    return config.stash.setdefault(_WARM, WarmServer())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The arguments of the marker ``ranks``.

    Args:
        world_size: how many ranks.
        timeout_s: seconds after which ranks that have not ended are shown with their stacks, and killed.
        backend: the process group of a framework that stands on the ranks: ``"gloo"`` or ``"nccl"`` for torch's, or a
            `BackendConfig`; None for none.
        faults: strike on the ranks.

    Raises:
        UsageError: one of them cannot be meant.
    """

    world_size: int
    timeout_s: float = 60.0
    backend: str | BackendConfig | None = None
    faults: Sequence[Fault] = ()

    def __post_init__(self) -> None:
        check_integer("ranks(world_size)", self.world_size, at_least=1, remedy="takes how many ranks, at least 1")
        check_number("ranks(timeout_s)", self.timeout_s, above=0, unit="seconds")
        if isinstance(self.backend, str):
            TorchConfig(backend=self.backend)  # refuses what it does not know
        elif self.backend is not None and not isinstance(self.backend, BackendConfig):
            raise refused("ranks(backend)", self.backend, "takes 'gloo', 'nccl', a BackendConfig or None")
        if not isinstance(self.faults, (list, tuple)) or not all(isinstance(each, Fault) for each in self.faults):
            raise refused("ranks(faults)", self.faults, "takes a list of turnout.testing.Fault")

    @property
    def backend_config(self) -> BackendConfig | None:
        """What configures the process group."""
        return TorchConfig(backend=self.backend) if isinstance(self.backend, str) else self.backend

    @classmethod
    def of(cls, mark: pytest.Mark) -> Ranks:
        """The arguments of a marker.

        Raises:
            UsageError: it does not take them.
        """
        try:
            if len(mark.args) > 1:
                raise TypeError("only the number of ranks goes without a name")
            return cls(**dict(zip(["world_size"], mark.args, strict=False)), **mark.kwargs)
        except (TypeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"@pytest.mark.ranks takes the number of ranks, and by name timeout_s, backend and faults: {error}"
            ) from error


class _PerRank:
    """Stands for a value of a fixture that every rank makes for itself."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    @contextlib.contextmanager
    def made(self) -> Iterator[Any]:
        if inspect.isgeneratorfunction(self.make):
            with contextlib.contextmanager(self.make)() as value:
                yield value
        else:
            yield self.make()


def per_rank(make: Callable[[], Any]) -> Any:  # Any: stands for what it makes
    """What a fixture returns whose value is to be made on every rank, and not once where pytest runs.

    Args:
        make: called without arguments on each rank before the test's body; what a generator function does after its
            ``yield`` is done after the body.

    Example:
        >>> import pytest
        >>> @pytest.fixture
        ... def connection():
        ...     return per_rank(lambda: open("/dev/null"))
    """
    if not callable(make):
        raise refused("per_rank(make)", make, "takes a function without arguments")
    return _PerRank(make)


class _Word(NamedTuple):
    """What became of the test's body on one rank.

    Args:
        error: what it raised, in the form in which it travels; None if it passed.
        shown: what pytest shows of that, pickled.
        outcome: the name and the reason, if it was skipped or the like.
        is_consequence: it was told of another rank's end, or to end itself.
    """

    error: bytes | None = None
    shown: bytes = b""
    outcome: tuple[str, str] | None = None
    is_consequence: bool = False


class RankFailure(NamedTuple):
    """How one rank has failed.

    Args:
        rank: the rank.
        error: what it raised, or an error that stands for its death.
        shown: what pytest shows of it: its own representation, or text.
        is_consequence: it may well come of another's failure.
    """

    rank: int
    error: BaseException
    shown: Any  # pytest's representations have no public type
    is_consequence: bool


@dataclass
class RanksEnded:
    """How a test ended on its ranks."""

    failures: list[RankFailure] = field(default_factory=list)
    """In the order in which they are told: first causes come first."""
    outcome: tuple[str, str] | None = None
    """``"skip"``, ``"xfail"`` or ``"exit"`` with the reason, if a rank said so and none failed."""


@dataclass(frozen=True, kw_only=True)
class RankTest:
    """A test's body, and how failures are shown.

    Args:
        name: the test's.
        function: the body.
        arguments: its arguments, by name: values of fixtures, each rank's own where `per_rank` made them.
        ranks: the marker's.
        style: of tracebacks, as pytest's ``--tb``.
        show_locals: as pytest's ``--showlocals``.
        comparing: explains comparisons that fail.
    """

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    ranks: Ranks
    style: str
    show_locals: bool
    comparing: Comparing

    def __call__(self) -> _Word:
        """Run the body on this rank."""
        try:
            with contextlib.ExitStack() as stack, self.comparing:
                arguments = {name: _on_rank(name, value, stack) for name, value in self.arguments.items()}
                self.function(**arguments)
        except (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception) as outcome:
            return _Word(outcome=(_OUTCOMES[type(outcome)], str(outcome)))
        except BaseException as error:
            return _Word(
                error=packed_error(error),
                shown=self._shown(error),
                is_consequence=isinstance(error, WorkerGroupError),
            )
        return _Word()

    def run(self) -> RanksEnded:
        """Run the body on all ranks.

        Raises:
            UsageError: something of it cannot be sent to ranks; the text names it.
        """
        for name in self.arguments:
            if name in _BOUND_FIXTURES:
                raise UsageError(
                    f"the fixture {name!r} belongs to pytest's own process, and the body of a test with "
                    "@pytest.mark.ranks runs on ranks, which are others; use it in a fixture instead"
                )
        with with_faults(self, self.ranks.faults) as body:
            return _Attempt(self, body).run()

    def _shown(self, error: BaseException) -> bytes:
        info = pytest.ExceptionInfo.from_exception(error)
        users = info.traceback.filter(lambda entry: not is_turnouts(entry.frame.f_globals.get("__name__", "")))
        info.traceback = users or info.traceback
        try:
            style: Any = "long" if self.style == "auto" else self.style
            return dumps(info.getrepr(style=style, showlocals=self.show_locals, funcargs=True))
        except Exception:  # whatever a class of the user's does when it is shown
            return dumps(traceback_text(error))


_OUTCOMES: dict[type[BaseException], str] = {
    pytest.skip.Exception: "skip",
    pytest.xfail.Exception: "xfail",
    pytest.exit.Exception: "exit",
}


def _on_rank(name: str, value: Any, stack: contextlib.ExitStack) -> Any:  # Any: values of fixtures
    if isinstance(value, _PerRank):
        return stack.enter_context(value.made())
    if name == "monkeypatch" and isinstance(value, pytest.MonkeyPatch):
        return stack.enter_context(pytest.MonkeyPatch.context())
    return value


class _Attempt:
    """One run of a test's body on its ranks."""

    def __init__(self, test: RankTest, body: Callable[[], _Word]) -> None:
        self._test = test
        self._ranks = test.ranks
        backend_config = self._ranks.backend_config
        self._worker = _Worker(
            TrainWorker(
                run_name=test.name,
                train_fn=body,
                backend_config=backend_config,
                datasets={},
                dataset_config=DataConfig(),
                forms_group=True,
                is_placed=True,
                checkpoints=MemoryKeeper(None).begin_attempt("start").checkpoints,
            ),
            list(warnings.filters),
        )
        self._controller = forking("test", body, self._ranks.world_size, backend_config)
        self._console = RankConsole()
        self._ended: dict[int, _Word] = {}
        self._failures: list[RankFailure] = []
        self._refused: dict[int, RankFailure] = {}
        self._hung = ""
        self._timers: list[threading.Timer] = []

    def run(self) -> RanksEnded:
        self._end_in(self._ranks.timeout_s, f"ranks(timeout_s={self._ranks.timeout_s:g})")
        try:
            outcome = self._controller.run_attempt(self._worker, self._take)
        except UsageError:
            _name_culprit(self._test)
            raise
        finally:
            for timer in self._timers:
                timer.cancel()
            for timer in self._timers:
                timer.join()
        if outcome.error is not None:
            raise outcome.error
        outcomes = [word.outcome for _, word in sorted(self._ended.items()) if word.outcome is not None]
        return RanksEnded(self._ordered(), outcomes[0] if outcomes else None)

    def _take(self, event: WorkerEvent) -> None:
        if isinstance(event, Log):
            self._console.show(event.rank, event.data)
        elif isinstance(event, Finished):
            self._end(event.rank, event.value)
        elif isinstance(event, Failed):
            # The coordinator says so of ranks that wait in vain, which have a word of their own to follow; of one that
            # has none the process group could not be set up, or the body not be received.
            text = f"could not enter the test's body: {traceback_text(event.error)}"
            is_consequence = isinstance(event.error, WorkerGroupError)
            self._refused.setdefault(event.rank, RankFailure(event.rank, event.error, text, is_consequence))
            if not is_consequence:
                self._end_soon_after(event.rank)
        elif isinstance(event, Died) and event.rank not in self._ended:
            text = self._hung or event.reason
            self._fail(RankFailure(event.rank, WorkerGroupError(f"rank {event.rank} {text}"), text, bool(self._hung)))

    def _end(self, rank: int, word: _Word) -> None:
        self._ended[rank] = word
        if word.error is not None:
            self._fail(RankFailure(rank, unpacked_error(word.error), loads(word.shown), word.is_consequence))

    def _fail(self, failure: RankFailure) -> None:
        self._failures.append(failure)
        self._end_soon_after(failure.rank)

    def _end_soon_after(self, rank: int) -> None:
        if len(self._timers) == 1:
            self._end_in(_AFTER_FAILURE_S, f"{_AFTER_FAILURE_S:g} s after rank {rank} had failed")

    def _end_in(self, delay_s: float, limit: str) -> None:
        timer = threading.Timer(delay_s, self._give_up, [limit])
        timer.name, timer.daemon = "turnout-test-timeout", True
        timer.start()
        self._timers.append(timer)

    def _give_up(self, limit: str) -> None:
        """From a timer's thread."""

        def end(stacks: str) -> None:
            self._hung = f"had not ended within {limit}, and was killed:\n{stacks}"
            self._controller.abort(f"the test had not ended within {limit}", 0.0)

        self._controller.tell_stacks(end)

    def _ordered(self) -> list[RankFailure]:
        """Those that caused the others first, else as they came; one for each rank."""
        told = [*self._failures, *(each for rank, each in self._refused.items() if rank not in self._ended)]
        first = {failure.rank: failure for failure in reversed(told)}
        return sorted(first.values(), key=lambda failure: (failure.is_consequence, told.index(failure)))


@dataclass(frozen=True)
class _Worker:
    """What a rank runs: the session's worker, under the warning filters of the test."""

    worker: TrainWorker
    filters: list[Any]  # Any: as `warnings` keeps them

    def __call__(self, channel: Channel) -> None:
        warnings.filters[:] = self.filters  # type: ignore[index]  # typeshed has a sequence, and it is a list
        warnings._filters_mutated()  # type: ignore[attr-defined]  # or the registry of a module hides what is new
        self.worker(channel)


def _name_culprit(test: RankTest) -> None:
    """Raise a `UsageError` that names what of the test cannot be pickled, by the fixture that it came from."""

    def parts() -> Iterator[tuple[str, Any]]:
        yield "the test", test.function
        yield from ((f"the value of the fixture {name!r}", value) for name, value in test.arguments.items())

    dumps_work(functools.partial(test.function, **test.arguments), parts)
