"""How the ranks of a run join torch's process group: `TorchConfig` says what the user wants, `TorchBackend` does it."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from turnout.backends.base import Backend
from turnout.backends.cores import share_of_cores
from turnout.backends.variables import LentVariables
from turnout.checks import check_choice, check_number, check_text, refused
from turnout.config import BackendConfig
from turnout.environment import is_under_torchrun, is_worker
from turnout.errors import ControllerError, ResourceError, UsageError
from turnout.session.collective import Collective
from turnout.session.events import RankInfo

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed re-exports it without saying so

__all__ = ["Leave", "TorchBackend", "TorchConfig", "init_group"]

logger = logging.getLogger(__name__)

Leave: TypeAlias = Callable[[Exception | None], None]
"""Leaves a process group; called once, with what the train function raised. It neither raises nor hangs."""

_LOOPBACK = "127.0.0.1"
_LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
_LONGEST_JOIN_S = 300.0  # torch's own default for a store: all ranks are at the door already
_TEARDOWN_S = 30.0
_TEARDOWN_AFTER_ERROR_S = 2.0


@dataclass(frozen=True, slots=True, repr=False)
class TorchConfig(BackendConfig):
    """How the ranks of a run join torch's process group.

    Example:
        >>> TorchConfig(backend="gloo", timeout_s=60)
        TorchConfig(backend='gloo', timeout_s=60.0)

    Args:
        backend: as `torch.distributed.init_process_group` names it: ``"gloo"``, ``"nccl"``, or one for each device,
            ``"cpu:gloo,cuda:nccl"``. None chooses nccl where CUDA is available, else gloo.
        init_method: ``"env"`` or ``"tcp"``, as Ray Train takes it. Both mean the same here: the ranks are told the
            address of a store that listens already, and ``MASTER_ADDR`` and ``MASTER_PORT`` name it either way.
        timeout_s: seconds that a collective operation may take.

    Raises:
        UsageError: a field cannot be meant.
    """

    backend_class: ClassVar[str | None] = "turnout.backends.torch:TorchBackend"
    shows_all_gpus: ClassVar[bool] = True
    preload: ClassVar[tuple[str, ...]] = ("torch", "torch.distributed")
    # The first optimizer of a process imports it, which takes longer than all the rest of a rank's start.
    imported_later: ClassVar[tuple[str, ...]] = ("torch._dynamo",)

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        if self.backend is not None:
            check_text("TorchConfig.backend", self.backend, 'None or a backend of torch.distributed such as "gloo"')
        check_choice("TorchConfig.init_method", self.init_method, ("env", "tcp"))
        self._set("timeout_s", check_number("TorchConfig.timeout_s", self.timeout_s, above=0, unit="seconds"))


class TorchBackend(Backend):
    """Makes one process group of all ranks, over a store that rank 0 serves on a port that it holds from the start.

    A process group that the user has made before is used as it is, and left standing.

    Args:
        config: the user's configuration.
    """

    config: TorchConfig

    def __init__(self, config: BackendConfig) -> None:
        if not isinstance(config, TorchConfig):
            raise refused("torch_config", config, "takes a turnout.torch.TorchConfig")
        super().__init__(config)
        self._undo: list[Leave] = []
        self._variables = LentVariables()

    def start(self, ranks: RankInfo, rendezvous: Collective) -> None:
        """Join the group.

        Raises:
            UsageError: the configured backend does not exist, or cannot work here.
            ControllerError: the ranks could not reach each other.
        """
        import torch.distributed as dist

        _settled_backend(self.config)  # before the ranks wait for each other, so that each of them says it
        try:
            self._share_cores(ranks)
            store = None if dist.is_initialized() else self._store(ranks, rendezvous)
            self._undo.append(init_group(self.config, ranks, store))
            self._tell_accelerate()
            # Rank 0 serves the store, which goes with its group: nobody's train function may return before all have it.
            rendezvous.barrier("torch's process group")
        except BaseException as error:
            self.stop(error if isinstance(error, Exception) else None)
            raise

    def stop(self, error: Exception | None) -> None:
        """Leave the group, and put back what was set for it; nothing that fails in this hides ``error``."""
        while self._undo:
            try:
                self._undo.pop()(error)
            except Exception:  # the error of the train function, if there is one, is what the user must see
                logger.warning("could not put back all that torch's process group was set up with", exc_info=True)
        self._variables.put_back()

    def _store(self, ranks: RankInfo, rendezvous: Collective) -> Store:
        """The store by which the ranks of this group find each other; rank 0 serves it."""
        import torch.distributed as dist

        is_one_node = ranks.local_world_size == ranks.world_size
        listener = _listener(is_one_node) if ranks.rank == 0 else None
        try:
            own = None if listener is None else (_own_address(is_one_node), listener.getsockname()[1])
            # The socket listens already, so that nobody can take its port and nobody comes too early: the others
            # connect while rank 0 makes its end of the store.
            host, port = rendezvous.broadcast("torch's store", own)
            if not is_under_torchrun():  # else they are torchrun's, whose store stays where they say
                self._variables.set({"MASTER_ADDR": host, "MASTER_PORT": str(port)})
            if is_one_node and "GLOO_SOCKET_IFNAME" not in os.environ:
                # Else gloo resolves the host's name, which may take seconds, fail, or give another interface.
                self._variables.set({"GLOO_SOCKET_IFNAME": _LOOPBACK_INTERFACE})
            join_s = min(self.config.timeout_s, _LONGEST_JOIN_S)
            try:
                store = dist.TCPStore(  # type: ignore[attr-defined]  # re-exported without saying so
                    host,
                    port,
                    ranks.world_size,
                    is_master=listener is not None,
                    timeout=timedelta(seconds=join_s),
                    wait_for_workers=False,
                    # Detached: the store's server owns the descriptor from here on, and closes it.
                    master_listen_fd=None if listener is None else listener.detach(),
                    use_libuv=True,
                )
            except RuntimeError as error:
                raise ControllerError(
                    f"rank {ranks.rank} could not reach torch's store on rank 0, at {host}:{port}, within {join_s:g} s "
                    f"(TorchConfig.timeout_s, at most {_LONGEST_JOIN_S:g}): {error}"
                ) from error
        finally:
            if listener is not None:
                listener.close()  # nothing to close once it is detached
        prefixed: Store = dist.PrefixStore("turnout", store)  # type: ignore[attr-defined]  # as above
        return prefixed

    def _share_cores(self, ranks: RankInfo) -> None:
        """Let the ranks of one node share its cores, where each would use them all, unless the user has said how."""
        import torch

        if os.environ.get("OMP_NUM_THREADS"):
            return
        before, share = torch.get_num_threads(), share_of_cores(ranks)
        if share is not None and share < before:
            torch.set_num_threads(share)
            self._undo.append(lambda _: torch.set_num_threads(before))
        # Libraries such as accelerate and Lightning would count the cores again, each in a way of its own.
        self._variables.set({"OMP_NUM_THREADS": str(torch.get_num_threads())})

    def _tell_accelerate(self) -> None:
        """Have accelerate, and Transformers on it, join the group on a machine without GPUs.

        There it takes every rank for a process that trains alone, unless it is told to use the CPU.
        """
        import torch
        import torch.distributed as dist

        if "ACCELERATE_USE_CPU" not in os.environ and not torch.cuda.is_available() and dist.get_backend() == "gloo":
            self._variables.set({"ACCELERATE_USE_CPU": "true"})


def init_group(config: TorchConfig, ranks: RankInfo, store: Store | None) -> Leave:
    """Make the default process group over a store that the ranks share, with this rank's device made current.

    Where the user has made the default group already, that is used, and left standing. No store is needed then.

    Args:
        config: the backend and the timeout.
        ranks: who this rank is.
        store: what the ranks find each other by, with no keys of another group's; not kept beyond the group's life.

    Returns:
        What leaves the group again.

    Raises:
        UsageError: the backend does not exist or cannot work here, or the user's own group is not one of these ranks.
        ResourceError: this rank has no CUDA device.
        ControllerError: the ranks could not reach each other.
    """
    import torch.distributed as dist

    backend = _settled_backend(config)
    _bind_device(ranks)
    if dist.is_initialized():
        theirs = dist.get_rank(), dist.get_world_size()
        if theirs != (ranks.rank, ranks.world_size):
            raise UsageError(
                f"torch's process group was initialised before the run, with this process as rank {theirs[0]} of "
                f"{theirs[1]}, and in the run it is rank {ranks.rank} of {ranks.world_size}; "
                "destroy that group first, or leave it to the trainer"
            )
        logger.debug("using the process group that was there before")
        return _leave_standing
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=ranks.rank,
            world_size=ranks.world_size,
            timeout=timedelta(seconds=config.timeout_s),
        )
    except RuntimeError as error:
        raise ControllerError(
            f"rank {ranks.rank} could not form torch's process group over {backend!r} with {ranks.world_size - 1} "
            f"others within {config.timeout_s:g} s (TorchConfig.timeout_s): {error}"
        ) from error
    # A weak reference: the group keeps the store alive, and with it the port, which a user who destroys this group to
    # make one of their own by MASTER_PORT needs.
    return _Departure(weakref.ref(dist.group.WORLD))


def _leave_standing(error: Exception | None) -> None:
    """Leave the user's own group as it is."""


class _Departure:
    """Destroys a process group in bounded time.

    torch waits without a bound for operations of the group that are under way, and where another rank has failed these
    end only when ``timeout_s`` has passed.

    Args:
        group: the group; another that the user has put in its place is left standing.
    """

    def __init__(self, group: weakref.ref[object]) -> None:
        self._group = group

    def __call__(self, error: Exception | None) -> None:
        import torch.distributed as dist

        if not dist.is_initialized() or dist.group.WORLD is not self._group():
            return
        if is_worker() and dist.get_backend() == "gloo":
            return  # the process is about to end, which does the same, and need not wait for gloo to look up
        failures: list[Exception] = []

        def destroy() -> None:
            try:
                dist.destroy_process_group()
            except Exception as failure:  # the edge of a thread
                failures.append(failure)

        thread = threading.Thread(target=destroy, name="turnout-torch-teardown", daemon=True)
        thread.start()
        patience_s = _TEARDOWN_S if error is None else _TEARDOWN_AFTER_ERROR_S
        thread.join(patience_s)
        if failures:
            raise failures[0]
        if thread.is_alive():
            logger.warning(
                "torch's process group is left to end by itself: after %g s an operation of it still waits for a rank",
                patience_s,
            )


def _settled_backend(config: TorchConfig) -> str:
    """The backend that is configured, or the best one here.

    Raises:
        UsageError: there is none of that name, or it cannot work here.
    """
    import torch
    import torch.distributed as dist

    if config.backend is None:
        return "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    names = [part.rpartition(":")[2].strip().lower() for part in config.backend.split(",")]
    # torch lists what it has heard of, also what this build of it lacks; "fake" is for torch's own tests.
    usable = [name for name in dist.Backend.backend_list if dist.is_backend_available(name)]
    for name in names:
        if name not in usable or name == "undefined":
            shown = ", ".join(repr(each) for each in usable if each not in ("undefined", "fake"))
            what = "was built without" if name in dist.Backend.backend_list else "does not know"
            raise refused("TorchConfig.backend", config.backend, f"this torch {what} {name!r}; it has {shown}")
    if "nccl" in names and not torch.cuda.is_available():
        remedy = "nccl needs CUDA, and there is none here; use 'gloo', or None, which chooses what works"
        raise refused("TorchConfig.backend", config.backend, remedy)
    return config.backend


def _bind_device(ranks: RankInfo) -> None:
    """Make this rank's CUDA device the current one, where it sees several and the user has chosen none."""
    import torch

    if not torch.cuda.is_available():
        return
    num_devices = torch.cuda.device_count()
    if num_devices < 2 or torch.cuda.current_device() != 0:
        return
    if ranks.local_rank >= num_devices:
        raise ResourceError(
            f"rank {ranks.rank} is number {ranks.local_rank} of its node, counted from 0, and the node shows "
            f"{num_devices} CUDA devices; start fewer workers on it, or check CUDA_VISIBLE_DEVICES"
        )
    torch.cuda.set_device(ranks.local_rank)


def _listener(is_one_node: bool) -> socket.socket:
    """A socket that listens on a free port: of this node alone, or of all its addresses."""
    if is_one_node:
        return socket.create_server((_LOOPBACK, 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _own_address(is_one_node: bool) -> str:
    """Where the other ranks reach this one."""
    if is_one_node:
        return _LOOPBACK
    told = os.environ.get("MASTER_ADDR")
    if told:  # a controller over several nodes knows by which of its addresses this node is reached
        return told
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing: it only chooses the interface that leads outside
            address: str = probe.getsockname()[0]
        except OSError:
            address = socket.gethostbyname(socket.gethostname())
    return address
