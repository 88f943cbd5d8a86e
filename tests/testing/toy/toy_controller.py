"""A controller of a package of its own, in one file: its ranks are forks of the driver.

It places and carries, and nothing more: what a report, a checkpoint or a retry is comes with Turnout.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
import traceback
from typing import ClassVar, NoReturn

from turnout.controllers import Controller, Outcome, RunSpec, Sink, Traits, Worker
from turnout.controllers.coordinator import Coordinator
from turnout.controllers.wire import WireChannel
from turnout.session.events import Log, RankInfo

_UNWIND_S = 1.0


class ToyController(Controller):
    """Forks a process for each rank, and serves their messages on the thread that called `fit()`."""

    name: ClassVar[str] = "toy"
    traits: ClassVar[Traits] = Traits(
        isolates_workers=True,
        forms_group=True,
        restartable=True,
        resizable=False,
        multi_node=False,
        ray_data=False,
    )

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self._coordinator: Coordinator | None = None
        self._ranks: dict[int, int] = {}

    def run_attempt(self, worker: Worker, sink: Sink) -> Outcome:
        size = self.spec.scaling_config.max_workers
        with Coordinator(size, sink, on_break=lambda reason: self._kill_in(_UNWIND_S)) as coordinator:
            self._coordinator = coordinator
            for rank in range(size):
                output, its = os.pipe()
                pid = os.fork()
                if pid == 0:
                    _run(worker, coordinator, RankInfo(rank, size, rank, size, 0), its)
                os.close(its)
                os.set_blocking(output, False)
                self._ranks[pid] = rank
                ended = os.pidfd_open(pid)
                coordinator.watch(output, functools.partial(self._read, rank, output, sink))
                coordinator.watch(ended, functools.partial(self._reap, pid, ended, output, sink))
            coordinator.serve(lambda: not self._ranks)
        self._coordinator = None
        return Outcome()

    def abort(self, reason: str, grace_s: float) -> None:
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.call_soon(lambda: coordinator.abort(reason))

    def _kill_in(self, delay_s: float) -> None:
        def kill() -> None:
            for pid in self._ranks:
                os.kill(pid, signal.SIGKILL)

        assert self._coordinator is not None
        self._coordinator.call_in(delay_s, kill)

    def _read(self, rank: int, output: int, sink: Sink) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(output, 1 << 16)
            if data:
                sink(Log(rank, data))
            elif self._coordinator is not None:
                self._coordinator.unwatch(output)

    def _reap(self, pid: int, ended: int, output: int, sink: Sink) -> None:
        assert self._coordinator is not None
        self._read(self._ranks[pid], output, sink)
        for each in (ended, output):
            self._coordinator.unwatch(each)
            os.close(each)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        rank = self._ranks.pop(pid)
        self._coordinator.read_rest(rank)  # its last words may still be on the line
        self._coordinator.died(rank, f"has exited with status {status}")


def _run(worker: Worker, coordinator: Coordinator, ranks: RankInfo, output: int) -> NoReturn:
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (os.fdopen(handle, "w", buffering=1, closefd=False) for handle in (1, 2))
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ["TURNOUT_WORKER"] = "1"
        channel = WireChannel(coordinator.address, ranks)
        worker(channel)
        channel.close()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
