"""How the ranks of a run join JAX's distributed runtime: `JaxConfig` says what the user wants, `JaxBackend` does it."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import inspect
import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from turnout.backends.base import Backend
from turnout.backends.own_port import LOOPBACK, HeldPort, own_address
from turnout.checks import refused
from turnout.config import BackendConfig
from turnout.dependency import imported
from turnout.environment import is_worker
from turnout.errors import ControllerError, UsageError
from turnout.session.collective import Collective
from turnout.session.events import RankInfo

__all__ = ["JaxBackend", "JaxConfig"]

logger = logging.getLogger(__name__)

_OLDEST = "0.5"
_JOIN_S = 300  # JAX's own default: all ranks are at the door already
_LEAVE_S = 20  # for all ranks to leave together, once all have said that they do


@dataclass(frozen=True, slots=True, repr=False)
class JaxConfig(BackendConfig):
    """How the ranks of a run join JAX's distributed runtime, in which each sees the devices of all.

    With neither field set JAX takes the best devices that it finds, as ever, or what ``JAX_PLATFORMS`` says.

    Args:
        use_tpu: let JAX use TPUs, and fail where there are none, unless ``JAX_PLATFORMS`` says otherwise.
        use_gpu: the same for CUDA's GPUs.

    Raises:
        UsageError: a field cannot be meant.
    """

    backend_class: ClassVar[str | None] = "turnout.backends.jax:JaxBackend"

    use_tpu: bool = False
    use_gpu: bool = False

    def __post_init__(self) -> None:
        for name, value in (("use_tpu", self.use_tpu), ("use_gpu", self.use_gpu)):
            if not isinstance(value, bool):
                raise refused(f"JaxConfig.{name}", value, "takes True or False")
        if self.use_tpu and self.use_gpu:
            raise refused("JaxConfig.use_gpu", True, "a rank trains on TPUs or on GPUs, and use_tpu=True; choose one")


class JaxBackend(Backend):
    """Makes one distributed runtime of all ranks, whose coordinator rank 0 serves on a port that it holds.

    Args:
        config: the user's configuration.
    """

    config: JaxConfig

    def __init__(self, config: BackendConfig) -> None:
        if not isinstance(config, JaxConfig):
            raise refused("jax_config", config, "takes a turnout.jax.JaxConfig")
        super().__init__(config)
        self._port: HeldPort | None = None
        self._jax: Any = None  # Any: the module, once this rank has joined
        self._before: dict[str, Any] = {}
        """What stood in JAX's configuration."""

    def start(self, ranks: RankInfo, rendezvous: Collective) -> None:
        """Join the runtime.

        Raises:
            MissingDependencyError: JAX is not installed here, or too old.
            UsageError: JAX has been used in this process already.
            ControllerError: the ranks could not reach each other.
        """
        jax = imported("jax", at_least=_OLDEST, extra="jax", needed_by="JaxTrainer")
        if jax.distributed.is_initialized():
            _check_own_group(jax, ranks)
            return
        self._choose_platform(jax)
        is_one_node = ranks.local_world_size == ranks.world_size
        try:
            if ranks.rank == 0:
                self._port = HeldPort(LOOPBACK if is_one_node else None)
            own = None if self._port is None else f"{own_address(ranks)}:{self._port.number}"
            address = rendezvous.broadcast("jax's coordinator", own)
            # It would listen on all addresses, without asking who connects.
            more = {"coordinator_bind_address": address} if is_one_node else {}
            self._initialize(jax, ranks, coordinator_address=address, **more)
        except BaseException:
            self._put_back(jax)
            raise

    def finish(self, rendezvous: Collective) -> None:
        """Wait for the others: JAX ends the processes of those whose coordinator has gone."""
        rendezvous.barrier("the end of the train function")

    def stop(self, error: Exception | None) -> None:
        """Leave the runtime: together with the others, or, after ``error``, without a word to them."""
        jax, self._jax = self._jax, None
        if jax is None:
            return
        try:
            if error is not None:
                _forget_exit()
                return
            jax.distributed.shutdown()
            if not is_worker():  # else the process ends now
                _forget_runtime()
        finally:
            self._put_back(jax)

    def _choose_platform(self, jax: Any) -> None:  # Any: the module
        settings = {"jax_cpu_collectives_implementation": "gloo"}  # JAX's own choice, but for older versions
        if self.config.use_tpu or self.config.use_gpu:
            settings["jax_platforms"] = "tpu" if self.config.use_tpu else "cuda"
        for name, value in settings.items():
            before = getattr(jax.config, name)
            if before in (None, "", "none"):
                self._before[name] = before
                jax.config.update(name, value)

    def _put_back(self, jax: Any) -> None:  # Any: the module
        while self._before:
            jax.config.update(*self._before.popitem())
        if self._port is not None:
            self._port.release()
            self._port = None

    def _initialize(self, jax: Any, ranks: RankInfo, **arguments: Any) -> None:  # Any: the module; as JAX takes them
        initialize = jax.distributed.initialize
        arguments |= {
            "num_processes": ranks.world_size,
            "process_id": ranks.rank,
            "cluster_detection_method": "deactivate",  # what starts other jobs of this machine decides nothing here
            "initialization_timeout": _JOIN_S,
        }
        if "shutdown_timeout_seconds" in inspect.signature(initialize).parameters:  # newer versions alone
            arguments["shutdown_timeout_seconds"] = _LEAVE_S
        try:
            initialize(**arguments)
        except RuntimeError as error:
            raise ControllerError(
                f"rank {ranks.rank} could not join JAX's distributed runtime at {arguments['coordinator_address']}: "
                f"{error}"
            ) from error
        self._jax = jax


def _check_own_group(jax: Any, ranks: RankInfo) -> None:  # Any: the module
    """The user has joined a runtime before, which is used as it is, and left standing."""
    theirs = jax.process_index(), jax.process_count()
    if theirs != (ranks.rank, ranks.world_size):
        raise UsageError(
            f"jax.distributed was initialised before the run, with this process as {theirs[0]} of {theirs[1]}, and in "
            f"the run it is rank {ranks.rank} of {ranks.world_size}; shut it down first, or leave it to the trainer"
        )
    logger.debug("using JAX's distributed runtime that was there before")


def _forget_runtime() -> None:
    """Have JAX be in this process alone again, and fit for another runtime; arrays of the one before are gone."""
    importlib.import_module("jax.extend.backend").clear_backends()
    with contextlib.suppress(ImportError, AttributeError):  # another version may have it elsewhere
        from jax._src import distributed

        distributed.global_state.process_id, distributed.global_state.num_processes = 0, 1


def _forget_exit() -> None:
    """Other ranks have failed, or will: JAX would wait for them at this process's end, as it has no way to say so."""
    with contextlib.suppress(ImportError, AttributeError):  # another version may have it elsewhere, and waits then
        from jax._src import api

        atexit.unregister(api.clean_up)
