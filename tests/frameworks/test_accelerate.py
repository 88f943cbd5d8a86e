"""`Accelerator()` inside a train function finds the ranks of the run on every track, and leaves nothing behind."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import turnout
from tests.frameworks.torch_family import PRELOADED, one_thread
from turnout import RunConfig
from turnout.testing.ranks import warm_server
from turnout.testing.tracks import IN_PROCESS, PROCESS, RAY, TORCHRUN, Track
from turnout.torch import TorchTrainer

pytestmark = pytest.mark.timeout(180)  # the first of them waits for the server that imports the frameworks


@pytest.fixture(scope="module", autouse=True)
def _server(pytestconfig: pytest.Config) -> Iterator[None]:
    warm_server(pytestconfig).start(PRELOADED)
    with one_thread():
        yield


def train() -> dict[str, Any]:
    """A loop of accelerate's, on 32 rows that all ranks share."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator = Accelerator()
        torch.manual_seed(0)
        network = nn.Linear(3, 1)
        x = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
        data = TensorDataset(x, x.sum(dim=1, keepdim=True))
        loader = DataLoader(data, batch_size=8 // accelerator.num_processes)
        model, optimizer, loader = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.1), loader)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.wait_for_everyone()
        summed = accelerator.reduce(torch.tensor(float(accelerator.process_index + 1)))
    state = PartialState()
    turnout.report({"loss": loss})
    return {
        "place": (state.process_index, state.num_processes, state.local_process_index),
        "main": accelerator.is_main_process,
        "summed": summed.item(),
        "weights": [each.tolist() for each in network.state_dict().values()],
        "num_threads": torch.get_num_threads(),
        "warned": [str(each.message) for each in caught if "OMP_NUM_THREADS" in str(each.message)],
    }


def is_set_up() -> list[bool]:
    return [bool(each._shared_state) for each in (PartialState, AcceleratorState, GradientState)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """In process, where accelerate is by itself too."""
    returned: dict[str, Any] = TorchTrainer(train, scaling_config=IN_PROCESS.scaling_config).fit().return_value
    return returned


def test_in_process_it_is_alone_and_its_states_end_with_the_run(alone: dict[str, Any]) -> None:
    assert alone["place"][:2] == (0, 1)
    assert is_set_up() == [False, False, False]
    assert not [name for name in os.environ if name.startswith("ACCELERATE")]


def test_states_that_the_program_has_set_up_before_a_run_stay() -> None:
    accelerator = Accelerator()
    try:
        TorchTrainer(train, scaling_config=IN_PROCESS.scaling_config).fit()
        assert is_set_up() == [True, True, True]
        assert accelerator.num_processes == 1
    finally:
        for each in (GradientState, AcceleratorState, PartialState):
            each._reset_state()


def test_states_end_with_a_run_that_has_failed() -> None:
    def fail() -> None:
        Accelerator()
        raise LookupError("no rows")

    with pytest.raises(LookupError, match="no rows"):
        TorchTrainer(fail, scaling_config=IN_PROCESS.scaling_config).fit()
    assert is_set_up() == [False, False, False]


@pytest.mark.parametrize(
    "track", [TORCHRUN, PROCESS, pytest.param(RAY, marks=pytest.mark.on_ray)], ids=lambda track: track.name
)
def test_on_several_ranks_it_finds_them_and_comes_to_the_same_weights(
    tmp_path: Path, alone: dict[str, Any], track: Track
) -> None:
    run_config = None if track is TORCHRUN else RunConfig(storage_path=str(tmp_path))
    result = track.fit(train, trainer=TorchTrainer, run_config=run_config)
    assert result.return_values is not None
    for rank, found in enumerate(result.return_values):
        assert found["place"] == (rank, 2, rank)
        assert found["main"] is (rank == 0)
        assert found["summed"] == 3.0
        assert found["warned"] == []
        for ours, theirs in zip(found["weights"], alone["weights"], strict=True):
            assert torch.allclose(torch.tensor(ours), torch.tensor(theirs), rtol=0, atol=1e-6)
    if track is PROCESS:
        num_cores = len(os.sched_getaffinity(0))
        assert [found["num_threads"] for found in result.return_values] == [max(1, num_cores // 2)] * 2
