"""How the ranks of a run find each other for LightGBM, which connects them itself whenever it trains."""

from __future__ import annotations

import contextlib
import random
import socket
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from turnout.backends.base import Backend
from turnout.backends.cores import share_openmp
from turnout.backends.own_port import own_address
from turnout.checks import refused
from turnout.config import BackendConfig
from turnout.dependency import imported
from turnout.errors import ControllerError
from turnout.session import active
from turnout.session.collective import Collective
from turnout.session.events import RankInfo

__all__ = ["LightGBMBackend", "LightGBMConfig", "get_network_params", "imported_lightgbm"]

_LOWEST_PORT, _HIGHEST_PORT = 10_000, 65_535
_MOST_TRIES = 1_000


def imported_lightgbm(needed_by: str) -> ModuleType:
    """LightGBM, imported now.

    Args:
        needed_by: what needs it, for the error's text.

    Raises:
        MissingDependencyError: it is not installed, or too old.
    """
    return imported("lightgbm", at_least="4.3", extra="lightgbm", needed_by=needed_by)


@dataclass(frozen=True, slots=True, repr=False)
class LightGBMConfig(BackendConfig):
    """How LightGBM is set up on the ranks of a run; there is nothing to choose.

    LightGBM's own parameters say the rest: ``time_out`` how long ranks wait for each other, in minutes.
    """

    backend_class: ClassVar[str | None] = "turnout.backends.lightgbm:LightGBMBackend"
    preload: ClassVar[tuple[str, ...]] = ("lightgbm",)


class LightGBMBackend(Backend):
    """Lets the ranks of a node share its cores. They find each other by `get_network_params`.

    Args:
        config: the user's configuration.
    """

    def __init__(self, config: BackendConfig) -> None:
        if not isinstance(config, LightGBMConfig):
            raise refused("lightgbm_config", config, "takes a turnout.lightgbm.LightGBMConfig")
        super().__init__(config)
        self._cleanup = contextlib.ExitStack()

    def start(self, ranks: RankInfo, rendezvous: Collective) -> None:
        """Get ready.

        Raises:
            MissingDependencyError: LightGBM is not installed, or too old.
        """
        lightgbm = imported_lightgbm("LightGBMTrainer")
        self._cleanup.callback(share_openmp(ranks, lightgbm.basic._LIB))

    def stop(self, error: Exception | None) -> None:
        """Put back what was set."""
        self._cleanup.close()


def get_network_params() -> dict[str, Any]:  # Any: values of LightGBM's own parameters
    """The parameters by which LightGBM connects the ranks of this run; empty where there is one.

    A meeting of all ranks: each of them calls it, and each call gives new ports, for one call of `lightgbm.train`. The
    booster of an earlier one lets go of the network by ``booster.free_network()``.

    Returns:
        ``num_machines``, ``local_listen_port`` and ``machines``. What ranks shall do together is for ``tree_learner``
        to say: without it LightGBM trains alone on each.

    Raises:
        UsageError: outside a run.
        ControllerError: this machine has no free port.

    Example:
        >>> def train():
        ...     params = {"objective": "binary", "tree_learner": "data", **get_network_params()}
        ...     lightgbm.train(params, lightgbm.Dataset(rows, label))
    """
    session = active()
    context = session.context
    if context.get_world_size() == 1:
        return {}
    ranks = RankInfo(
        context.get_world_rank(),
        context.get_world_size(),
        context.get_local_rank(),
        context.get_local_world_size(),
        context.get_node_rank(),
    )
    port, let_go = _claimed_port()
    weakref.finalize(session, let_go)  # LightGBM does not say when it has bound it, and may not have at the first call
    machines = session.collective.gather("get_network_params", f"{own_address(ranks)}:{port}")
    return {"num_machines": ranks.world_size, "local_listen_port": port, "machines": ",".join(machines)}


def _claimed_port() -> tuple[int, Callable[[], None]]:
    """A TCP port of this machine that no other run of Turnout's takes, though nobody listens there yet.

    LightGBM binds the port by itself and shares it with nobody, so that it cannot be held by being bound. What is held
    is the UDP port of the same number, as a token: it is one process's alone, and the kernel takes it back from one
    that dies. From those ports that the kernel gives to whoever asks for any, none is taken.

    Returns:
        The port, and what gives up the claim to it.
    """
    for port in _candidates():
        token = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            token.bind(("", port))
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:  # as LightGBM will
                probe.bind(("", port))
        except OSError:
            token.close()
        else:
            return port, token.close
    raise ControllerError(f"no free port was found for LightGBM in {_MOST_TRIES} tries")


def _candidates() -> Iterator[int]:
    first, last = _ephemeral_ports()
    ports = [port for port in range(_LOWEST_PORT, _HIGHEST_PORT + 1) if not first <= port <= last]
    drawn = random.SystemRandom()  # the user's seed is the same on every rank, and in every run
    for _ in range(_MOST_TRIES):
        yield drawn.choice(ports or range(_LOWEST_PORT, _HIGHEST_PORT + 1))


def _ephemeral_ports() -> tuple[int, int]:
    """The first and the last of those that the kernel gives to whoever asks for any."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return 49_152, 65_535  # RFC 6335
    return first, last
