"""The server that forks the ranks of a test session."""

from __future__ import annotations

import os

from turnout.backends.torch import TorchConfig
from turnout.controllers.process.client import close_idle_servers, lent_server
from turnout.controllers.process.controller import preload_of
from turnout.testing.ranks import WarmServer


def test_a_run_with_torch_finds_the_server_that_has_read_pytest_too() -> None:
    close_idle_servers()  # one of another test's could do as well
    WarmServer().start(["torch"])

    for backend in (None, TorchConfig(backend="gloo")):
        with lent_server(preload_of(backend)) as server:
            assert {"pytest", "turnout.testing.ranks"} <= server.preload


def test_starting_it_again_for_what_it_has_starts_no_other() -> None:
    warm = WarmServer()
    pids = []
    for _ in range(2):
        warm.start(["torch"])
        with lent_server({"pytest", "torch"}) as server:
            pids.append(server.pid)

    assert pids[0] == pids[1] != os.getpid()
