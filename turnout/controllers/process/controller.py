"""`ProcessController`: N ranks on this machine, each a process forked from the warm server."""

from __future__ import annotations

import contextlib
import functools
import glob
import logging
import os
import signal
import sys
from typing import ClassVar, Self

from turnout.config import BackendConfig
from turnout.controllers.base import Ending, Outcome, RunSpec, Sink, Traits, Worker
from turnout.controllers.coordinator import Coordinator
from turnout.controllers.output import PIECE, RankOutput
from turnout.controllers.process.client import Server, lent_server
from turnout.controllers.serving import ServedGroup, ServingController
from turnout.controllers.work import Launch, packed_validation, packed_work, working_directory
from turnout.data.shards import check_datasets
from turnout.environment import TORCHRUN_VARIABLES
from turnout.errors import ControllerError, ResourceError, UnsupportedError
from turnout.session.events import RankInfo

__all__ = ["ProcessController", "preload_of"]

logger = logging.getLogger(__name__)

_UNWIND_S = 3.0  # for ranks to unwind once the attempt has failed
_LINGER_S = 0.0005  # a report of two ranks takes 0.2 ms
_EXIT_S = 10.0  # for ranks to exit once all have said their last word
_HUNG_UP_S = 5.0  # for a rank to exit that has hung up
_MOST_PIECES = 1 + (1 << 20) // PIECE  # a pipe holds no more, and a child of the rank's may go on to write


class ProcessController(ServingController):
    """Forks the ranks of an attempt, carries their messages on the thread that called `fit()`, and reaps them."""

    name: ClassVar[str] = "process"
    traits: ClassVar[Traits] = Traits(
        isolates_workers=True,
        forms_group=True,
        restartable=True,
        resizable=False,
        multi_node=False,
        ray_data=False,
        runs_aside=True,
    )

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        _refuse_unsupported(spec)

    def run_attempt(self, worker: Worker, sink: Sink) -> Outcome:
        """Fork the ranks, and serve them until the last has exited.

        Raises:
            UsageError: what they are to run cannot be pickled; the text names the variable at fault.
            KeyboardInterrupt: the run was interrupted; no rank is left.
        """
        work = packed_work(worker, self.spec)
        try:
            with lent_server(preload_of(self.spec.backend_config)) as server, _Group(self.spec, server, sink) as group:
                self._group = group
                group.fork(work)
                group.serve()
        except ControllerError as error:
            return Outcome(ending=Ending.NOT_STARTED, error=error)
        finally:
            self._group = None
        if group.was_interrupted:
            raise KeyboardInterrupt
        return Outcome()

    def run_aside(self, worker: Worker, sink: Sink, timeout_s: float | None) -> bool:
        """Fork one more process, from a server of its own, and serve it until it has exited."""
        work = packed_validation(worker, self.spec)
        with (
            lent_server(preload_of(self.spec.backend_config)) as server,
            _Group(self.spec, server, sink, size=1) as group,
        ):
            return self._serve_aside(group, lambda: group.fork(work), timeout_s)


def preload_of(backend: BackendConfig | None) -> set[str]:
    """What the server is to have imported for ranks with this backend, in a program like this one."""
    modules = (*backend.preload, *backend.imported_later) if backend is not None else ()
    return {*modules, *(["torch"] if "torch" in sys.modules else [])}


class _Group(ServedGroup):
    """The ranks of one attempt, or the one process that runs beside them.

    Args:
        spec: of the run.
        server: forks them.
        sink: takes their events.
        size: how many they are; None for as many as the run is to have.
    """

    def __init__(self, spec: RunSpec, server: Server, sink: Sink, size: int | None = None) -> None:
        super().__init__()
        self._server = server
        self._sink = sink
        self._size = size or spec.scaling_config.max_workers
        self._use_gpu = spec.scaling_config.use_gpu
        self._ranks: dict[int, int] = {}
        """The rank of each process that lives."""
        self._outputs: dict[int, _Output] = {}
        self._is_ending = False
        self._is_killing = False
        self._coordinator = Coordinator(
            self._size,
            sink,
            stall_timeout_s=spec.run_config.stall_timeout_s,
            fails_on_stall=spec.run_config.stall_action == "fail",
            linger_s=_LINGER_S,
            on_break=lambda reason: self._unwind(_UNWIND_S),
            on_disconnect=lambda rank: self._coordinator.call_in(_HUNG_UP_S, lambda: self._give_up(rank)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for output in self._outputs.values():
            output.close()
        self._coordinator.close()

    def fork(self, work: bytes) -> None:
        """Start every rank with ``work``."""
        ranks = [RankInfo(rank, self._size, rank, self._size, 0) for rank in range(self._size)]
        environment = {name: value for name, value in os.environ.items() if name not in TORCHRUN_VARIABLES}
        environment |= self._server.variables
        if not self._use_gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        launch = Launch(
            ranks=ranks,
            address=self._coordinator.address,
            work=work,
            environment=environment,
            directory=working_directory(),
            arguments=list(sys.argv),
            path=list(sys.path),
        )
        with contextlib.ExitStack() as theirs:
            ends = []
            for rank in range(self._size):
                mine, its = os.pipe()
                theirs.callback(os.close, its)
                ends.append(its)
                self._outputs[rank] = _Output(rank, mine, self._sink)
            pids = self._server.fork(launch, ends)
        self._ranks = {pid: rank for rank, pid in enumerate(pids)}
        for output in self._outputs.values():
            self._coordinator.watch(output.handle, functools.partial(self._read_output, output))

    def serve(self, timeout_s: float | None = None) -> None:
        """Carry messages until no rank is left; those that still are after ``timeout_s`` are killed."""
        self._coordinator.watch(self._server.line, self._reap)
        if timeout_s is not None:
            self._coordinator.call_in(timeout_s, self._time_out)
        try:
            self._run_loop()
        except BaseException:
            self._kill()
            while self._ranks:
                self._reap()
            raise
        finally:
            self._coordinator.unwatch(self._server.line)

    def abort(self, reason: str, grace_s: float) -> None:
        """From any thread."""

        def end() -> None:
            self._coordinator.abort(reason)
            self._unwind(grace_s)

        self._coordinator.call_soon(end)

    @property
    def _has_ranks(self) -> bool:
        return True

    def _is_done(self) -> bool:
        if not self._is_ending and not self._coordinator.unfinished:
            self._is_ending = True
            self._coordinator.call_in(_EXIT_S, self._kill)
        return not self._ranks

    def _read_output(self, output: _Output) -> None:
        output.read()
        if output.is_over:  # the rank has closed it, and it would be ready for ever
            self._coordinator.unwatch(output.handle)

    # -- ends

    def _unwind(self, grace_s: float) -> None:
        """The attempt has failed: those who wait have been told; tell the others, and kill whoever stays."""
        waiting = self._coordinator.told
        for pid, rank in self._ranks.items():
            if rank in self._coordinator.unfinished and rank not in waiting:
                self._server.signal(pid, signal.SIGTERM, whole_group=False)
        self._coordinator.call_in(grace_s, self._kill)

    def _time_out(self) -> None:
        self.was_timed_out = bool(self._ranks)
        self._kill()

    def _kill(self) -> None:
        self._is_killing = True
        for pid in self._ranks:
            self._server.signal(pid, signal.SIGKILL, whole_group=True)

    def _reap(self) -> None:
        try:
            exited = self._server.exited()
        except (EOFError, OSError):
            self._coordinator.unwatch(self._server.line)
            pid, how = self._server.pid, _how(self._server.close())
            for rank in self._ranks.values():
                self._coordinator.read_rest(rank)
            for rank in self._ranks.values():
                self._coordinator.died(rank, f"died with the server that forks ranks (pid {pid}), which {how}")
            self._ranks.clear()
            return
        rank = self._ranks.pop(exited.pid)
        self._coordinator.read_rest(rank)  # its last words may still be on the line
        output = self._outputs[rank]
        if not output.is_over:
            self._coordinator.unwatch(output.handle)
        output.finish()
        if rank in self._coordinator.unfinished:
            self._coordinator.died(rank, self._how_rank(exited.status), output.shown())

    def _how_rank(self, status: int) -> str:
        if status >= 0:
            return f"{_how(status)} before the train function had ended (os._exit?)"
        if self._is_killing and status == -signal.SIGKILL:
            return "was killed by the driver, as it did not end in time"
        return _how(status)

    def _give_up(self, rank: int) -> None:
        if rank in self._ranks.values():
            self._coordinator.died(rank, "has closed its connection to the driver, and runs on")


class _Output:
    """The pipe by which one rank prints."""

    def __init__(self, rank: int, handle: int, sink: Sink) -> None:
        self.handle = handle
        self.is_over = False
        self._printed = RankOutput(rank, sink)
        os.set_blocking(handle, False)

    def read(self) -> bool:
        """Pass on what has come; returns whether there may be more."""
        try:
            data = os.read(self.handle, PIECE)
        except BlockingIOError:
            return False
        self.is_over = not data
        self._printed.take(data)
        return bool(data)

    def finish(self) -> None:
        """The rank has exited: read what is left, though a child of its own may still hold the other end."""
        for _ in range(_MOST_PIECES):
            if not self.read():
                break
        self._printed.finish()

    def shown(self) -> str:
        """The last lines, for the error."""
        return self._printed.shown()

    def close(self) -> None:
        os.close(self.handle)


def _how(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _refuse_unsupported(spec: RunSpec) -> None:
    scaling, run = spec.scaling_config, spec.run_config
    check_datasets(spec.datasets, spec.dataset_config, world_size=scaling.max_workers, ray_error=UnsupportedError)
    asked = {
        f"num_workers={scaling.num_workers!r} (elastic)": isinstance(scaling.num_workers, tuple),
        "resources_per_worker": scaling.resources_per_worker is not None,
        "accelerator_type": scaling.accelerator_type is not None,
        "label_selector": scaling.label_selector is not None,
        "worker_runtime_env": run.worker_runtime_env is not None,
    }
    num_gpus = _num_gpus()
    if scaling.use_gpu and num_gpus is not None and num_gpus < scaling.max_workers:
        raise ResourceError(
            f"ScalingConfig(num_workers={scaling.num_workers}, use_gpu=True) asks for {scaling.max_workers} GPUs, one "
            f"a rank, and this machine has {num_gpus}"
            + (" that CUDA_VISIBLE_DEVICES shows" if "CUDA_VISIBLE_DEVICES" in os.environ else "")
        )
    for what, is_asked in asked.items():
        if is_asked:
            raise UnsupportedError(
                f"{what}: the controller 'process' forks a fixed number of ranks on this machine, and places nothing; "
                "the controller 'ray' can. Leave it out, or use ScalingConfig(controller='ray')"
            )


def _num_gpus() -> int | None:
    """How many GPUs this machine shows, without a framework that would take hold of one; None if that is unknown."""
    if sys.platform != "linux" or os.path.exists("/dev/kfd") or os.path.exists("/dev/dxg"):
        return None
    devices = len(glob.glob("/dev/nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return devices if visible is None else min(devices, len([each for each in visible.split(",") if each.strip()]))
