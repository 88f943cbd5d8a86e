"""A run on two nodes whose ranks, driver and second node are killed or stopped at random moments loses nothing.

It ends with the loss of an undisturbed run, every checkpoint whose report had returned can be read, and the cluster
holds nothing of it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.train_program import NAME, loss_of_step
from tests.distributed.on_ray import assert_clean
from turnout.storage.location import StorageLocation
from turnout.storage.reading import committed
from turnout.storage.record import verify
from turnout.storage.run_folder import RunFolder

PROGRAM = Path(__file__).with_name("train_program.py")
SEEDS = (1, 2, 3, 4)
NUM_DISTURBANCES = 16  # of each seed
_RECOVERY_S = 90.0


class Chaos:
    """One run, what drives it, and the cluster that it is on.

    Args:
        folder: for the run and its notes.
        moments: the source of every choice.
    """

    def __init__(self, folder: Path, moments: random.Random) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        self.done: Counter[str] = Counter()
        self._moments = moments
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self._second = self._cluster.add_node(num_cpus=1)
        self._driver = self._start()

    @property
    def address(self) -> str:
        """Of the cluster."""
        return str(self._cluster.address)

    def disturb(self) -> None:
        """Do one of the four things, at a random moment, and see that training goes on."""
        kind = self._moments.choice(["rank", "rank", "driver", "node", "pause"])
        time.sleep(self._moments.uniform(0.0, 0.6))  # the random moment itself: nothing is waited for
        {"rank": self._kill_rank, "driver": self._kill_driver, "node": self._kill_node, "pause": self._pause}[kind]()
        self.done[kind] += 1
        before = self.newest
        wait_until(lambda: self.newest > before + 1, f"a step after {before}, when a {kind} had been struck", self.told)

    def stop(self) -> list[tuple[int, float]]:
        """Have the run end; returns what its ranks return."""
        (self.folder / "stop").touch()
        output, _ = self._driver.communicate(timeout=_RECOVERY_S)
        assert self._driver.returncode == 0, self.told()
        done = next(line for line in output.splitlines() if line.startswith("done "))
        return [tuple(each) for each in json.loads(done.removeprefix("done "))]

    def close(self) -> None:
        """End what is left."""
        self._driver.kill()
        self._driver.communicate()
        self._cluster.shutdown()

    # -- what is known of the run

    @property
    def newest(self) -> int:
        """The newest step whose report has returned on any rank; -1 if none has."""
        return max((int(words[1]) for words in self._notes() if words[0] == "returned"), default=-1)

    @property
    def num_nodes(self) -> int:
        """That the cluster takes for alive; Ray is to be connected with it."""
        import ray

        return sum(node["Alive"] for node in ray.nodes())

    def told(self) -> str:
        """What the driver has said last."""
        return "\n".join((self.folder / "driver.log").read_text().splitlines()[-40:])

    def _pid(self, rank: int) -> int:
        return [int(words[2]) for words in self._notes() if words[0] == "pid" and int(words[1]) == rank][-1]

    def _notes(self) -> Iterator[list[str]]:
        path = self.folder / "notes"
        for line in path.read_text().splitlines() if path.exists() else ():
            yield line.split()

    # -- what is done to it

    def _start(self) -> subprocess.Popen[str]:
        with (self.folder / "driver.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, str(PROGRAM), self.address, str(self.folder)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _kill_rank(self) -> None:
        send(self._pid(self._moments.choice([0, 1])), signal.SIGKILL)

    def _pause(self) -> None:
        pid = self._pid(self._moments.choice([0, 1]))
        send(pid, signal.SIGSTOP)
        time.sleep(self._moments.uniform(0.2, 1.5))
        send(pid, signal.SIGCONT)

    def _kill_driver(self) -> None:
        self._driver.kill()
        self._driver.communicate()
        self._driver = self._start()

    def _kill_node(self) -> None:
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = self._cluster.add_node(num_cpus=1)


def send(pid: int, number: signal.Signals) -> None:
    """To a rank, which may have ended."""
    try:
        if "RankActor" in " ".join(psutil.Process(pid).cmdline()):
            os.kill(pid, number)
    except (psutil.Error, ProcessLookupError):
        pass


def wait_until(condition: Callable[[], bool], what: str, told: Callable[[], str]) -> None:
    """Look again and again, as a file tells nobody that it has changed."""
    deadline = time.monotonic() + _RECOVERY_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}:\n{told()}"
        time.sleep(0.02)


def torn_of(run: RunFolder, records: Any) -> list[str]:
    """The checkpoints that cannot be read as they were written."""
    torn = []
    for record in records:
        reason = verify(run.checkpoints / record.name, "full", record)
        if reason is not None:
            torn.append(f"{record.name}: {reason}")
        step, folder = record.metrics["step"], Path((run.checkpoints / record.name).path)
        for rank in (0, 1):
            if (folder / f"rank-{rank}").read_bytes() != random.Random(f"{step} {rank}").randbytes(50_000):
                torn.append(f"{record.name}: rank {rank}'s file differs")
    return torn


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_struck_training_ends_as_if_nothing_had_been(
    tmp_path: Path, tally: Counter[str], seed: int
) -> None:
    import ray

    chaos = Chaos(tmp_path, random.Random(seed))
    try:
        wait_until(lambda: chaos.newest >= 1, "the first steps", chaos.told)
        for _ in range(NUM_DISTURBANCES):
            chaos.disturb()
        newest = chaos.newest
        values = chaos.stop()

        step, loss = values[0]
        assert values == [(step, loss)] * 2
        assert step >= newest
        assert loss == loss_of_step(step)
        run = RunFolder.at(StorageLocation.open(str(tmp_path / "storage" / NAME)))
        records = committed(run)
        assert [record.metrics["step"] for record in records] == list(range(step + 1)), "a checkpoint was lost"
        assert torn_of(run, records) == []
        ray.init(address=chaos.address, logging_level=logging.ERROR, log_to_driver=False)
        try:
            # Until Ray has missed a killed raylet's heartbeats for long enough it counts what that one had, as taken.
            wait_until(lambda: chaos.num_nodes == 2, "Ray to notice the nodes that were killed", chaos.told)
            assert_clean()
        finally:
            ray.shutdown()
        tally.update({f"struck: {kind}": count for kind, count in chaos.done.items()})
        tally.update({"commits read back": step + 1, "lost": 0, "torn": 0, "leaked": 0})
    finally:
        chaos.close()
