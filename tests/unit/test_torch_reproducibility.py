"""`enable_reproducibility`: which draws repeat, and what it sets."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from turnout.errors import UsageError
from turnout.integrations.torch import enable_reproducibility


class RandomDraws(Dataset[list[float]]):
    """What the three generators of the worker process give."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[float]:
        return [random.random(), float(np.random.random()), torch.rand(1).item()]


@pytest.fixture
def restored_settings() -> Iterator[None]:
    """What `enable_reproducibility` sets for good is set back."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    was_benchmarking = torch.backends.cudnn.benchmark
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    with mock.patch.dict(os.environ):
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    torch.backends.cudnn.benchmark = was_benchmarking
    torch.use_deterministic_algorithms(was_deterministic)


@pytest.mark.usefixtures("restored_settings")
def test_the_same_seed_gives_the_same_draws_of_python_numpy_and_torch() -> None:
    def draws(seed: int) -> tuple[float, ...]:
        enable_reproducibility(seed)
        return random.random(), float(np.random.random()), torch.rand(1).item()

    assert draws(0) == draws(0)
    assert all(first != second for first, second in zip(draws(0), draws(1), strict=True))


@pytest.mark.usefixtures("restored_settings")
def test_reproducibility_chooses_deterministic_algorithms() -> None:
    torch.backends.cudnn.benchmark = True
    enable_reproducibility()
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.usefixtures("restored_settings")
def test_reproducibility_reaches_the_workers_of_data_loaders() -> None:
    def epoch(seed: int) -> list[Any]:
        enable_reproducibility(seed)
        return list(DataLoader(RandomDraws(), batch_size=None, num_workers=1, multiprocessing_context="fork"))

    assert epoch(0) == epoch(0)
    assert epoch(0) != epoch(1)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "0", None, True])
def test_a_seed_that_not_every_generator_takes_is_refused_before_any_is_seeded(seed: Any) -> None:
    before = random.getstate()
    with pytest.raises(UsageError, match=r"enable_reproducibility\(\): seed=.*2\*\*32 - 1"):
        enable_reproducibility(seed)
    assert random.getstate() == before
