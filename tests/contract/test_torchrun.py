"""What is torchrun's alone: every rank runs the driver program, and so has a `Result` and callbacks of its own."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

import turnout
import turnout.collective
from turnout import FailureConfig, RunConfig, WorkerGroupError
from turnout.testing.contract.helpers import Recorder, rank, report_folder, text_in
from turnout.testing.tracks import Fit, Track


def describes_itself() -> int:
    report_folder({"rank": rank()}, {f"of-{rank()}": str(rank())})
    return 100 + rank()


def seen(result: turnout.Result) -> list[Any]:
    return [result.metrics, result.return_value, result.return_values, result.path]


def test_in_memory_every_rank_has_a_result_of_its_own(torchrun: Track) -> None:
    def program(fit: Fit) -> list[Any]:
        result = fit(describes_itself)
        files = [name for name in ("of-0", "of-1") if result.checkpoint and Path(result.checkpoint.path, name).exists()]
        return [*seen(result), files]

    assert torchrun.drive_everywhere(program) == [
        [{"rank": each}, 100 + each, [100 + each], None, [f"of-{each}"]] for each in range(2)
    ]


def test_with_storage_all_ranks_have_the_same_result(torchrun: Track, tmp_path: Path) -> None:
    def program(fit: Fit) -> list[Any]:
        result = fit(describes_itself, run_config=RunConfig(name="run", storage_path=tmp_path))
        best = [(metrics, text_in(checkpoint, "of-1")) for checkpoint, metrics in result.best_checkpoints or ()]
        return [*seen(result), best, list(result.metrics_dataframe["rank"])]

    expected = [{"rank": 0}, 100, [100, 101], str(tmp_path / "run"), [({"rank": 0}, "1")], [0]]
    assert torchrun.drive_everywhere(program) == [expected] * 2


@pytest.mark.parametrize("is_stored", [False, True], ids=["in-memory", "stored"])
def test_callbacks_are_called_on_rank_zero(torchrun: Track, tmp_path: Path, is_stored: bool) -> None:
    def program(fit: Fit) -> list[Any]:
        recorder = Recorder()
        storage = tmp_path if is_stored else None
        fit(describes_itself, run_config=RunConfig(name="run", storage_path=storage, callbacks=[recorder]))
        return [metrics for metrics, _ in recorder.reports]

    all_ranks = [{"rank": 0}, {"rank": 1}] if is_stored else [{"rank": 0}]
    assert torchrun.drive_everywhere(program) == [[all_ranks], []]


def test_an_exception_leaves_fit_on_every_rank_and_with_its_frames_where_it_was_raised(torchrun: Track) -> None:
    def last_rank_raises() -> None:
        if rank() == 1:
            raise ValueError("real cause")
        turnout.collective.barrier()

    def program(fit: Fit) -> tuple[bool, bool, str, str]:
        with pytest.raises(ValueError, match="real cause") as caught:
            fit(last_rank_raises)
        frames = traceback.extract_tb(caught.value.__traceback__)
        notes = "\n".join(caught.value.__notes__)
        return isinstance(caught.value, WorkerGroupError), "raised on rank 1" in notes, frames[-1].name, notes

    told = torchrun.drive_everywhere(program)
    assert [each[:2] for each in told] == [(True, True)] * 2
    assert told[1][2] == "last_rank_raises"
    assert "in last_rank_raises" in told[0][3]


def test_retries_are_left_to_torchrun_with_a_warning(
    torchrun: Track, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> None:
        with (tmp_path / f"attempts-of-{rank()}").open("a") as file:
            file.write("x")
        turnout.collective.barrier()
        raise ValueError("real cause")

    with pytest.raises(ValueError, match="real cause"):
        torchrun.fit(train, run_config=RunConfig(failure_config=FailureConfig(max_failures=2)))
    assert [(tmp_path / f"attempts-of-{each}").read_text() for each in range(2)] == ["x", "x"]
    assert "max_failures=2 has no effect under torchrun" in caplog.text


def test_torchs_process_group_stands_within_each_run_of_a_program_and_is_gone_after_it(torchrun: Track) -> None:
    def train() -> int:
        import torch
        import torch.distributed as dist

        total = torch.tensor(rank() + 1)
        dist.all_reduce(total)
        return int(total)

    def program(fit: Fit) -> list[int]:
        import torch.distributed as dist

        values = []
        for _ in range(3):
            values.append(fit(train).return_value)
            assert not dist.is_initialized()
        return values

    assert torchrun.drive_everywhere(program) == [[3, 3, 3]] * 2
