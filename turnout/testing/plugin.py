"""The pytest plugin: the marker ``ranks``, and the fixtures ``track`` and ``police``.

Every pytest that finds Turnout installed loads this file, so it imports nothing until a test asks for it.
"""

from __future__ import annotations

import inspect
import sys
import unittest
from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from turnout.testing.ranks import RanksEnded
    from turnout.testing.tracks import Track

_ENDED: pytest.StashKey[Any] = pytest.StashKey()
"""What became of an item's body on its ranks: a `RanksEnded`, for its report."""
_SAY: dict[str, Callable[[str], object]] = {"xfail": pytest.xfail, "exit": pytest.exit}
_TRACKS = ("in-process", "torchrun", "process")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses a controller."""
    parser.getgroup("turnout").addoption(
        "--turnout-controller",
        metavar="NAME",
        help="run the tests of turnout.testing.contract over the controller of this name alone",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "on_ray: the test runs on a Ray cluster; of turnout.testing.contract")
    config.addinivalue_line(
        "markers",
        "ranks(world_size, *, timeout_s=60, backend=None, faults=()): run the test's body on that many ranks, forked "
        "from a warm server; backend='gloo' sets up torch's process group on them (turnout.testing)",
    )


@pytest.fixture
def _turnout_modules_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test's own module defines travels to other processes by value, so that they need not import it."""
    with _by_value(request.node):
        yield


@pytest.fixture(params=_TRACKS)
def track(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _turnout_modules_by_value: None
) -> Track:
    """Each track in turn, to train on: ``track.fit(train_fn, **arguments_of_the_trainer)``.

    To choose some, parametrise it: ``@pytest.mark.parametrize("track", ["in-process", "process"], indirect=True)``.
    """
    import dataclasses

    from turnout.testing.ranks import warm_server
    from turnout.testing.tracks import TRACKS, track_of

    name = request.param
    chosen = next((each for each in TRACKS if each.name == name), None) or track_of(name)
    if name in ("torchrun", "process"):
        warm_server(request.config).start(["torch"])
    return dataclasses.replace(chosen, folder=str(tmp_path_factory.mktemp("runs")))


@pytest.fixture
def police() -> Iterator[None]:
    """Fails a test that leaves something behind: a thread, process, variable, open file, process group, session."""
    from turnout.testing.leaks import police

    with police():
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse the marker where it would have no effect."""
    if item.get_closest_marker("ranks") is None:
        return
    function = getattr(item, "obj", None)
    if getattr(item, "cls", None) is not None and issubclass(item.cls, unittest.TestCase):  # type: ignore[attr-defined]
        pytest.fail("@pytest.mark.ranks: a unittest.TestCase runs its methods itself; use a plain class", pytrace=False)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        pytest.fail("@pytest.mark.ranks: takes no coroutine; call asyncio.run in the body", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a test with the marker on its ranks."""
    mark = pyfuncitem.get_closest_marker("ranks")
    if mark is None:
        return None
    from turnout.combined_error import combine
    from turnout.errors import UsageError
    from turnout.testing.assertions import Comparing
    from turnout.testing.ranks import Ranks, RankTest, warm_server

    refusal = None
    try:
        ranks = Ranks.of(mark)
        warm_server(pyfuncitem.config).start()
        with _by_value(pyfuncitem):
            ended = RankTest(
                name=pyfuncitem.nodeid,
                function=pyfuncitem.obj,
                arguments={name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames},
                ranks=ranks,
                style=pyfuncitem.config.getoption("tbstyle"),
                show_locals=pyfuncitem.config.getoption("showlocals"),
                comparing=Comparing.of(pyfuncitem.config),
            ).run()
    except UsageError as error:
        refusal = str(error)
    if refusal is not None:
        pytest.fail(refusal, pytrace=False)
    pyfuncitem.stash[_ENDED] = ended
    if ended.failures:
        raise combine(ended.failures[0].error, {each.rank: each.error for each in ended.failures})
    if ended.outcome is not None:
        kind, reason = ended.outcome
        if kind == "skip":
            raise pytest.skip.Exception(reason, _use_item_location=True)
        _SAY[kind](reason)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show each rank's own failure in the place of the one that stands for all."""
    report = yield
    ended = item.stash.get(_ENDED, None)
    if call.when == "call" and ended is not None and ended.failures and report.outcome == "failed":
        report.longrepr = _shown(ended, item.get_closest_marker("ranks").args[0])  # type: ignore[union-attr]
    return report


def _shown(ended: RanksEnded, world_size: int) -> Any:  # Any: pytest's representations have no public type
    from _pytest._code.code import ExceptionChainRepr, ReprFileLocation, ReprTracebackNative

    chain: list[Any] = []
    for failure in ended.failures:
        after = ", after that and maybe because of it" if chain and failure.is_consequence else ""
        title = f" rank {failure.rank} of {world_size}{after} "
        chain.append((ReprTracebackNative([f"{title:_^78}\n"]), None, None))
        if isinstance(failure.shown, str):
            chain.append((ReprTracebackNative([f"rank {failure.rank} {failure.shown}\n"]), None, None))
        elif hasattr(failure.shown, "chain"):
            chain.extend(failure.shown.chain)
        else:
            chain.append((failure.shown.reprtraceback, None, None))
    # The last one's place and message are what pytest's summary shows.
    first = ended.failures[0]
    crash = getattr(first.shown, "reprcrash", None) or ReprFileLocation("", 0, first.shown.partition("\n")[0])
    message = f"rank {first.rank}: {crash.message}" if crash.lineno else f"rank {first.rank} {crash.message}"
    chain[-1] = (chain[-1][0], ReprFileLocation(crash.path, crash.lineno, message), chain[-1][2])
    return ExceptionChainRepr(chain)


class _by_value:  # noqa: N801  # it reads as the function that it stands for
    """Have what a test's module and the conftests define travel by value in a block."""

    def __init__(self, item: pytest.Item) -> None:
        module = getattr(item, "module", None)
        plugins = item.config.pluginmanager.get_plugins()
        conftests = [each for each in plugins if isinstance(each, ModuleType) and _is_conftest(each)]
        self._modules = [each for each in (module, *conftests) if each is not None and _is_known(each)]

    def __enter__(self) -> None:
        import cloudpickle

        known = cloudpickle.list_registry_pickle_by_value()
        self._modules = [module for module in self._modules if module.__name__ not in known]
        for module in self._modules:
            cloudpickle.register_pickle_by_value(module)

    def __exit__(self, *_: object) -> None:
        import cloudpickle

        for module in self._modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_conftest(module: ModuleType) -> bool:
    return module.__name__.rpartition(".")[2] == "conftest"


def _is_known(module: ModuleType) -> bool:
    return sys.modules.get(module.__name__) is module
