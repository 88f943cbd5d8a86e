"""Start ranks, let them report, and kill one: on Turnout's process track, by torchrun, by torch.multiprocessing, bare.

    python ranks.py start turnout|torchrun|spawn|fork NUM_RANKS
    python ranks.py reports turnout|gloo|pipe
    python ranks.py recover turnout|torchrun

Prints JSON: ``start`` the milliseconds from the call until the last rank is in its function with gloo up; ``reports``
the reports a second of two ranks; ``recover`` the milliseconds from the SIGKILL of a rank until both are in their
function again. Times are of one clock, as all ranks are on this machine.
"""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

NUM_STARTS = 5
NUM_REPORTS = 10_000


# -- Turnout


def fit(train_fn: Any, num_ranks: int, **run: Any) -> Any:
    """Train on forked ranks."""
    from turnout import LoggingConfig, RunConfig, ScalingConfig
    from turnout.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as folder:
        return TorchTrainer(
            train_fn,
            scaling_config=ScalingConfig(num_workers=num_ranks, controller="process"),
            run_config=RunConfig(storage_path=folder, logging_config=LoggingConfig("ERROR"), **run),
        ).fit()


def now() -> float:
    """A train function that says when it was entered."""
    return time.time()


def start_turnout(num_ranks: int) -> float:
    """Median of warm starts; the first, which starts the server, is not counted."""
    taken = []
    for _ in range(1 + NUM_STARTS):
        started = time.time()
        entered = fit(now, num_ranks).return_values
        taken.append(max(entered) - started)
    return float(statistics.median(taken[1:])) * 1e3


def reports_turnout() -> float:
    """Metrics alone, of two ranks."""

    def train() -> float:
        from turnout import report

        for step in range(100):
            report({"loss": 1.0 / (1 + step)})
        started = time.perf_counter()
        for step in range(NUM_REPORTS):
            report({"loss": 1.0 / (1 + step)})
        return NUM_REPORTS / (time.perf_counter() - started)

    return float(fit(train, 2).return_value)


def recover_turnout() -> float:
    """Rank 1 is killed after a committed checkpoint; warm, as a run that fails is."""
    from turnout import FailureConfig

    def train() -> float:
        from turnout import Checkpoint, get_checkpoint, get_context, report

        entered = time.time()
        if get_checkpoint() is not None:
            return entered
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "model").write_text("weights")
            report({"step": 0}, Checkpoint(folder))
        if get_context().get_world_rank() == 1:
            Path(mark).write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        report({"step": 1})
        return 0.0

    taken = []
    for _ in range(1 + NUM_STARTS):
        with tempfile.TemporaryDirectory() as place:
            mark = f"{place}/killed"
            entered = fit(train, 2, failure_config=FailureConfig(max_failures=1)).return_values
            taken.append(max(entered) - float(Path(mark).read_text()))
    return float(statistics.median(taken[1:])) * 1e3


# -- torchrun, which runs this very file


def torchrun(job: str, num_ranks: int, *options: str) -> float:
    """Milliseconds until the last rank was there, as the ranks have noted."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        started = time.time()
        subprocess.run(
            [*command, *options, __file__, "rank", job, place],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=60,
        )
        killed = Path(place, "killed")
        began = float(killed.read_text()) if killed.exists() else started
        return (max(float(Path(place, str(rank)).read_text()) for rank in range(num_ranks)) - began) * 1e3


def rank_of_torchrun(job: str, place: str) -> None:
    """What each of its ranks does; the recovery is without gloo, which a restart of torchrun's often cannot join."""
    import torch.distributed as dist

    rank = os.environ["RANK"]
    if job == "start":
        dist.init_process_group("gloo")
    Path(place, rank).write_text(repr(time.time()))
    if job == "start":
        dist.barrier()  # who leaves first would take gloo's addresses from those who still join
        dist.destroy_process_group()
    elif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if rank == "1":
            Path(place, "killed").write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


# -- torch.multiprocessing, and ranks that are forked by hand


def join_gloo(rank: int, num_ranks: int, handle: int, port: int) -> None:
    """The least that a process group on one machine needs: a store whose port is bound already."""
    import torch.distributed as dist

    store = dist.TCPStore(  # type: ignore[attr-defined]  # re-exported without saying so
        "127.0.0.1",
        port,
        num_ranks,
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=handle if rank == 0 else None,
        timeout=timedelta(seconds=60),
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)


def spawned(rank: int, num_ranks: int, place: str) -> None:
    """A rank of `torch.multiprocessing.spawn`, as its guide has it."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=num_ranks)
    Path(place, str(rank)).write_text(repr(time.time()))
    dist.barrier()
    dist.destroy_process_group()


def start_spawn(num_ranks: int) -> float:
    """One start; each of its ranks imports torch anew."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as place:
        started = time.time()
        mp.spawn(spawned, (num_ranks, place), nprocs=num_ranks)  # type: ignore[attr-defined,no-untyped-call]  # torch's own
        return (max(float(Path(place, str(rank)).read_text()) for rank in range(num_ranks)) - started) * 1e3


def start_fork(num_ranks: int) -> float:
    """Median of starts by hand: a process that has imported torch forks, and the ranks join gloo."""
    import torch.distributed  # before the fork

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    taken = []
    for _ in range(1 + NUM_STARTS):
        with tempfile.TemporaryDirectory() as place, socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            started = time.time()
            pids = []
            for rank in range(num_ranks):
                pid = os.fork()
                if pid == 0:
                    join_gloo(rank, num_ranks, server.detach(), port)
                    Path(place, str(rank)).write_text(repr(time.time()))
                    torch.distributed.barrier()  # rank 0 serves the store until all have joined
                    os._exit(0)
                pids.append(pid)
            for pid in pids:
                os.waitpid(pid, 0)
            taken.append(max(float(Path(place, str(rank)).read_text()) for rank in range(num_ranks)) - started)
    return float(statistics.median(taken[1:])) * 1e3


def reports_gloo() -> float:
    """What a barrier of gloo for each report would allow."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as place:
        mp.spawn(barriers, (place,), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]  # torch's own
        return float(Path(place, "rate").read_text())


def barriers(rank: int, place: str) -> None:
    """A rank that meets the other by `torch.distributed.barrier`."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=2)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(NUM_REPORTS // 5):
        dist.barrier()
    if rank == 0:
        Path(place, "rate").write_text(repr(NUM_REPORTS // 5 / (time.perf_counter() - started)))
    dist.barrier()
    dist.destroy_process_group()


def reports_pipe() -> float:
    """The floor: two ranks that each send a dict to their parent, who answers both once it has the two."""
    lines: list[Connection] = []
    pids = []
    for _ in range(2):
        mine, its = Pipe()
        pid = os.fork()
        if pid == 0:
            for step in range(NUM_REPORTS):
                its.send({"loss": 1.0 / (1 + step)})
                its.recv()
            os._exit(0)
        lines.append(mine)
        pids.append(pid)
    started = time.perf_counter()
    for _ in range(NUM_REPORTS):
        for line in lines:
            line.recv()
        for line in lines:
            line.send(None)
    rate = NUM_REPORTS / (time.perf_counter() - started)
    for pid in pids:
        os.waitpid(pid, 0)
    return rate


def main(what: str, side: str, *rest: str) -> float:
    """One figure."""
    if what == "start":
        num_ranks = int(rest[0])
        if side == "torchrun":
            return torchrun("start", num_ranks)
        return {"turnout": start_turnout, "spawn": start_spawn, "fork": start_fork}[side](num_ranks)
    if what == "recover":
        return recover_turnout() if side == "turnout" else torchrun("recover", 2, "--max-restarts", "1")
    return {"turnout": reports_turnout, "gloo": reports_gloo, "pipe": reports_pipe}[side]()


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_of_torchrun(*sys.argv[2:])
    else:
        print(json.dumps(main(*sys.argv[1:])))
