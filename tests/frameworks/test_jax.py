"""JAX: ranks that compute as one process does, failures beside its collectives, and what is left of it afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnout
from tests.distributed.ranks import ROOT, line_of, text_of
from tests.distributed.within import rank
from turnout import Checkpoint, FailureConfig, RunConfig, ScalingConfig, UsageError
from turnout.backends.own_port import LOOPBACK, HeldPort
from turnout.controllers.process import client
from turnout.jax import JaxConfig, JaxTrainer
from turnout.testing.torchrun import run_under_torchrun


@pytest.fixture(autouse=True, scope="module")
def _no_server_of_jax_stays() -> Iterator[None]:
    yield
    client.close_idle_servers()


def fit(train: Callable[..., Any], storage: Path, *, controller: str = "process", **run: Any) -> turnout.Result:
    return JaxTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, controller=controller),
        run_config=RunConfig(storage_path=str(storage), **run),
    ).fit()


def descending(kill_at: int | None = None, first_kill: Path | None = None) -> Callable[[], list[float]]:
    """A train function that fits a line by gradient descent, each rank with its half of the rows.

    Args:
        kill_at: the step before which rank 1 is killed, while rank 0 is on its way into the collective.
        first_kill: exists once it was.
    """

    def train() -> list[float]:
        import jax
        import jax.numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        assert (jax.process_index(), jax.process_count()) == (rank(), 2)
        mesh = Mesh(np.array(jax.devices()), ("rows",))
        rows, target = np.arange(16, dtype=np.float32).reshape(8, 2) / 16, np.arange(8, dtype=np.float32)
        own = slice(rank() * 4, rank() * 4 + 4)
        spread = NamedSharding(mesh, PartitionSpec("rows"))
        x, y = (jax.make_array_from_process_local_data(spread, each[own]) for each in (rows, target))

        @jax.jit
        def step(weights: Any, x: Any, y: Any) -> Any:
            loss, slope = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
            return weights - 0.3 * slope, loss

        start, weights, losses = 0, np.zeros(2, np.float32), []
        if (checkpoint := turnout.get_checkpoint()) is not None:
            with checkpoint.as_directory() as folder:
                weights, start = np.load(f"{folder}/weights.npy"), int(Path(folder, "step").read_text()) + 1
        current = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
        for number in range(start, 6):
            if number == kill_at and first_kill is not None and rank() == 1 and not first_kill.exists():
                first_kill.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            current, loss = step(current, x, y)
            losses.append(float(loss))
            with tempfile.TemporaryDirectory() as folder:
                np.save(f"{folder}/weights.npy", np.asarray(current))
                Path(folder, "step").write_text(str(number))
                turnout.report({"loss": float(loss)}, Checkpoint.from_directory(folder))
        if rank() == 1:
            time.sleep(0.3)  # on its own, when rank 0, which has the coordinator, has nothing left to do
        return losses

    return train


def losses_of_numpy() -> list[float]:
    rows, target = np.arange(16).reshape(8, 2) / 16, np.arange(8)
    weights, losses = np.zeros(2), []
    for _ in range(6):
        rest = rows @ weights - target
        losses.append(float(np.mean(rest**2)))
        weights = weights - 0.3 * 2 * rows.T @ rest / 8
    return losses


def test_two_ranks_compute_what_one_process_does_and_resume_as_if_none_had_been_killed(tmp_path: Path) -> None:
    train = descending(kill_at=3, first_kill=tmp_path / "killed")
    result = fit(train, tmp_path / "runs", failure_config=FailureConfig(max_failures=1))
    assert (tmp_path / "killed").exists()
    assert result.return_values == [pytest.approx(losses_of_numpy()[3:], rel=1e-5)] * 2
    assert result.metrics_dataframe["loss"].tolist() == pytest.approx(losses_of_numpy(), rel=1e-5)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_raises_while_the_other_computes_comes_first(failing: int, tmp_path: Path) -> None:
    def train() -> None:
        import atexit

        import jax
        from jax.experimental.multihost_utils import process_allgather

        process_allgather(np.ones(1))
        atexit.register((tmp_path / f"ended_{rank()}").touch)
        if rank() == failing:
            (tmp_path / "at").touch()
            raise ValueError("real cause")  # raises
        process_allgather(jax.numpy.ones(1))

    with pytest.raises(turnout.WorkerGroupError) as caught:
        fit(train, tmp_path / "runs")
    assert time.time() - (tmp_path / "at").stat().st_mtime < 8
    assert isinstance(caught.value, ValueError)
    assert f"on rank {failing}, {line_of(train, 'raises')} in train:" in text_of(caught.value)
    assert next(iter(caught.value.worker_failures)) == failing
    assert (tmp_path / f"ended_{failing}").exists(), "what it has registered for its end is done"


def test_the_rank_with_the_coordinator_comes_first_when_it_is_killed_while_the_other_computes(tmp_path: Path) -> None:
    def train() -> None:
        from jax.experimental.multihost_utils import process_allgather

        process_allgather(np.ones(1))
        if rank() == 0:
            (tmp_path / "at").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        process_allgather(np.ones(1))

    with pytest.raises(turnout.WorkerGroupError) as caught:
        fit(train, tmp_path / "runs")
    assert time.time() - (tmp_path / "at").stat().st_mtime < 8
    assert str(caught.value).startswith("rank 0 was killed by SIGKILL (out of memory?)")
    assert next(iter(caught.value.worker_failures)) == 0


@pytest.mark.on_ray
def test_ranks_on_ray_compute_what_one_process_does(tmp_path: Path) -> None:
    result = fit(descending(), tmp_path, controller="ray")
    assert result.return_values == [pytest.approx(losses_of_numpy(), rel=1e-5)] * 2


def test_under_torchrun_each_run_has_a_runtime_of_its_own_and_leaves_none() -> None:
    def train() -> float:
        import jax
        from jax.experimental.multihost_utils import process_allgather

        total: float = process_allgather(np.ones(1) * (1 + jax.process_index())).sum().item()
        return total

    def program() -> tuple[list[Any], bool, int]:
        trainer = JaxTrainer(train, scaling_config=ScalingConfig(num_workers=0))
        totals = [trainer.fit().return_value for _ in range(2)]
        import jax

        return totals, jax.distributed.is_initialized(), jax.process_count()

    assert run_under_torchrun(program, world_size=2) == [([3.0, 3.0], False, 1)] * 2


def run(program: str, *command: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, *command, "-c", program], env=environment, capture_output=True, text=True, timeout=55
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_in_process_nothing_is_initialised() -> None:
    program = """
import sys
from turnout import ScalingConfig
from turnout.jax import JaxTrainer
def train():
    assert "jax" not in sys.modules
    import jax
    return jax.distributed.is_initialized(), jax.process_count()
trainer = JaxTrainer(train, scaling_config=ScalingConfig(num_workers=0))
print(trainer.fit().return_value, *(name for name in ("torch", "tensorflow", "keras", "ray") if name in sys.modules))
"""
    assert run(program) == "(False, 1)\n"


def test_a_jax_that_is_missing_or_too_old_is_told_with_the_line_that_installs_it() -> None:
    program = """
import sys
from turnout import MissingDependencyError
from turnout.backends.jax import JaxBackend, JaxConfig
from turnout.session.collective import SoloCollective
from turnout.session.events import RankInfo
class Old:
    __version__ = "0.4.9"
for module in (None, Old):
    sys.modules["jax"] = module
    try:
        JaxBackend(JaxConfig()).start(RankInfo(), SoloCollective())
    except MissingDependencyError as error:
        print(error)
"""
    install, upgrade = "pip install 'turnout[jax]'", "pip install --upgrade 'turnout[jax]'"
    assert run(program).splitlines() == [
        f"JaxTrainer needs the package 'jax', which is not installed. Install it with: {install}",
        f"JaxTrainer needs jax 0.5 or newer, and 0.4.9 is installed. Install it with: {upgrade}",
    ]


@pytest.mark.parametrize(
    "arguments", [{"use_tpu": 1}, {"use_gpu": "yes"}, {"use_tpu": True, "use_gpu": True}], ids=["tpu", "gpu", "both"]
)
def test_a_configuration_that_cannot_be_meant_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"JaxConfig\.use_"):
        JaxConfig(**arguments)


@pytest.mark.parametrize("host", [LOOPBACK, None])
def test_a_held_port_is_nobody_elses_and_lets_a_server_of_the_same_user_stand_beside_it(host: str | None) -> None:
    held, other = HeldPort(host), HeldPort(host)
    assert held.number != other.number
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind((LOOPBACK, held.number))
    with socket.socket() as server, socket.socket() as caller:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind((host or "", held.number))
        server.listen()
        caller.connect((LOOPBACK, held.number))
        accepted, _ = server.accept()
        caller.close()  # first, so that nothing is left of the connection on the port
        accepted.close()
    held.release()
    other.release()
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind((LOOPBACK, held.number))
