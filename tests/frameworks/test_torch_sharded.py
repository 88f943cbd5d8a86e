"""`save_sharded` and `load_sharded`: each rank adds what it holds, and any number of ranks goes on with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

import turnout
from tests.frameworks.torch_family import PRELOADED, one_thread
from turnout import Checkpoint, Result, RunConfig, ScalingConfig
from turnout.errors import CheckpointNotFoundError, UsageError
from turnout.testing.ranks import warm_server
from turnout.torch import TorchTrainer, load_sharded, prepare_model, save_sharded

pytestmark = pytest.mark.timeout(180)  # the first of them waits for the server that imports the frameworks


@pytest.fixture(scope="module", autouse=True)
def _server(pytestconfig: pytest.Config) -> Iterator[None]:
    warm_server(pytestconfig).start(PRELOADED)
    with one_thread():
        yield


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Goes on to ``config["steps"]`` steps by Adam, on what all ranks see alike; returns where it began and ended."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    model = prepare_model(network, parallel_strategy=config["strategy"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0, "seen": torch.zeros(2)}
    checkpoint = turnout.get_checkpoint()
    if checkpoint is not None:
        state = load_sharded(state, checkpoint)
    began_at = state["step"]
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    for step in range(began_at, config["steps"]):
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        state["step"], state["seen"] = step + 1, state["seen"] + 1
    with tempfile.TemporaryDirectory() as folder:
        save_sharded(state, folder)
        turnout.report({"loss": loss}, checkpoint=Checkpoint.from_directory(folder))
    return {"began_at": began_at, "loss": loss.item(), "seen": state["seen"].tolist(), "weights": whole(model)}


def whole(model: nn.Module) -> list[Any]:
    values = model.state_dict().values()
    return [(each.full_tensor() if isinstance(each, DTensor) else each).tolist() for each in values]


def run(num_workers: int, strategy: str, steps: int, storage: Path, start: Checkpoint | None = None) -> Result:
    return TorchTrainer(
        train,
        train_loop_config={"strategy": strategy, "steps": steps},
        scaling_config=ScalingConfig(num_workers=num_workers, controller="process" if num_workers else None),
        run_config=RunConfig(storage_path=str(storage)),
        resume_from_checkpoint=start,
    ).fit()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Six steps in one process."""
    return run(0, "ddp", 6, tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_what_two_ranks_have_saved_is_gone_on_with_by_one_and_by_three(
    tmp_path: Path, undisturbed: Result, strategy: str
) -> None:
    two = run(2, strategy, 3, tmp_path)
    assert two.checkpoint is not None
    names = {path.name for path in Path(two.checkpoint.path).iterdir()}
    assert {".metadata", "__0_0.distcp"} < names
    assert "__1_0.distcp" in names, "each rank has written a part"
    for num_workers in (0, 3):
        result = run(num_workers, strategy, 6, tmp_path, two.checkpoint)
        for found in result.return_values or ():
            assert found["began_at"] == 3
            assert found["seen"] == [6.0, 6.0]
            for ours, theirs in zip(found["weights"], undisturbed.return_value["weights"], strict=True):
                assert torch.allclose(torch.tensor(ours), torch.tensor(theirs), rtol=0, atol=1e-6)


def test_a_state_of_one_process_is_loaded_in_place(tmp_path: Path) -> None:
    saved = nn.Linear(2, 2)
    save_sharded({"model": saved, "epoch": 3}, tmp_path / "folder")
    loaded = nn.Linear(2, 2)
    state = load_sharded({"model": loaded, "epoch": -1}, Checkpoint(tmp_path / "folder"))
    assert state == {"model": loaded, "epoch": 3}
    assert torch.equal(loaded.weight, saved.weight)


def test_an_optimizer_without_its_model_is_refused(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(UsageError, match="the optimizer 'optimizer', and no model that has all of its parameters"):
        save_sharded({"optimizer": optimizer, "model": nn.Linear(2, 2)}, tmp_path)


def test_what_is_no_state_or_no_such_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"save_sharded\(\): state"):
        save_sharded(nn.Linear(2, 2), tmp_path)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(UsageError, match=r"load_sharded\(\): checkpoint"):
        load_sharded({}, str(tmp_path))  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(UsageError, match="was not written by save_sharded"):
        load_sharded({}, Checkpoint(tmp_path))
    with pytest.raises(CheckpointNotFoundError):
        load_sharded({}, Checkpoint(tmp_path / "nothing"))
