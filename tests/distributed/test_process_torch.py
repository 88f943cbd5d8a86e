"""Failures beside torch's own collectives on forked ranks: the first cause comes first, though torch says little."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import turnout
from tests.distributed.ranks import line_of, text_of, wait_until
from tests.distributed.within import rank
from turnout import RunConfig, ScalingConfig
from turnout.controllers.process import client
from turnout.torch import TorchTrainer


@pytest.fixture(autouse=True, scope="module")
def _no_server_of_torch_stays() -> Iterator[None]:
    yield
    client.close_idle_servers()


def fit(train: Callable[..., Any], storage: Path) -> turnout.Result:
    return TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, controller="process"),
        run_config=RunConfig(storage_path=str(storage)),
    ).fit()


def failure_of(train: Callable[..., Any], storage: Path) -> turnout.WorkerGroupError:
    with pytest.raises(turnout.WorkerGroupError) as caught:
        fit(train, storage)
    return caught.value


def test_a_rank_that_raises_while_the_other_reduces_comes_first(tmp_path: Path) -> None:
    def train() -> None:
        import torch

        torch.distributed.barrier()
        (tmp_path / "at").touch()
        if rank() == 1:
            raise ValueError("real cause")  # raises
        torch.distributed.all_reduce(torch.ones(1))

    error = failure_of(train, tmp_path / "runs")
    assert time.time() - (tmp_path / "at").stat().st_mtime < 8
    assert isinstance(error, ValueError)
    assert f"on rank 1, {line_of(train, 'raises')} in train:" in text_of(error)
    assert next(iter(error.worker_failures)) == 1


def test_a_rank_that_is_killed_while_the_other_reduces_comes_first(tmp_path: Path) -> None:
    def train() -> None:
        import torch

        torch.distributed.barrier()
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.all_reduce(torch.ones(1))

    error = failure_of(train, tmp_path)
    assert str(error).startswith("rank 1 was killed by SIGKILL (out of memory?)")
    assert next(iter(error.worker_failures)) == 1


def test_a_rank_that_returns_while_the_other_reduces_is_named_beside_torchs_error(tmp_path: Path) -> None:
    def train() -> None:
        import torch

        torch.distributed.barrier()
        if rank() == 0:
            torch.distributed.all_reduce(torch.ones(1))  # reduces

    text = text_of(failure_of(train, tmp_path))
    file, _, number = line_of(train, "reduces").rpartition(":")
    assert f'File "{file}", line {number}, in train' in text
    assert f"on rank 0, {line_of(train, 'reduces')} in train:" in text
    assert "rank(s) that had returned by then: 1" in text


class Numbers:
    """A data set whose items tell which process has loaded them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


@pytest.mark.parametrize(("method", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_a_data_loaders_workers_work_and_end_with_their_rank(method: str, num_workers: int, tmp_path: Path) -> None:
    def train() -> tuple[list[int], set[int]]:
        from torch.utils.data import DataLoader

        numbers: Any = Numbers()
        loader: Any = DataLoader(
            numbers, num_workers=num_workers, multiprocessing_context=method, persistent_workers=True
        )
        items = [(int(index), int(pid)) for index, pid in loader]
        iterator = iter(loader)  # is left in the middle
        next(iterator)
        return [index for index, _ in items], {pid for _, pid in items}

    values = fit(train, tmp_path).return_values
    assert values is not None
    pids = set()
    for indices, workers in values:
        assert indices == list(range(8))
        assert len(workers) == num_workers
        pids |= workers
    assert len(pids) == 2 * num_workers
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "the loaders' workers to end", 2)


def test_a_temporary_folder_that_is_still_held_goes_with_its_rank(tmp_path: Path) -> None:
    def train() -> str:
        import builtins
        import tempfile

        builtins.held = tempfile.TemporaryDirectory(prefix="held-", dir=tmp_path)  # type: ignore[attr-defined]
        return str(builtins.held.name)  # type: ignore[attr-defined]

    # The server has imported torch here, which has finalizers of its own.
    folders = fit(train, tmp_path / "storage").return_values
    assert folders is not None
    assert [Path(folder).exists() for folder in folders] == [False, False]
