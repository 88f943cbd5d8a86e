"""The example of reinforcement learning: the same numbers in every mode from one seed, and a reward that rises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from examples import grpo_toy


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_reward_rises_and_is_the_same_in_process_and_on_simulated_groups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    local = grpo_toy.main("local", num_steps=30)
    assert sum(local[-5:]) / 5 > sum(local[:5]) / 5 + 0.2
    assert grpo_toy.main("simulate", num_steps=30) == pytest.approx(local, rel=1e-12)
    assert "simulate: reward 0.272266 to " in capsys.readouterr().out
