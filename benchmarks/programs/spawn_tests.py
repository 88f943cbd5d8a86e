"""The same test as torch's users write it, by `torch.multiprocessing.spawn`; two of them, run by pytest."""

import os
from pathlib import Path

import pytest
import torch


def _body(rank: int, number: int, store: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    total = torch.tensor([rank + number])
    torch.distributed.all_reduce(total)
    assert total.item() == 2 * number + 1
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("number", range(2))
def test_ranks_add_up(number: int, tmp_path: Path) -> None:
    """Each rank has its own number, and both the sum."""
    torch.multiprocessing.spawn(_body, (number, os.fspath(tmp_path / "store")), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
