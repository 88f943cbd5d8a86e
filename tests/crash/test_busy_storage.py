"""A storage that refuses the first request for every file: whatever a run reads there, it asks again."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import turnout
from tests.crash.train_program import payload, read_folder, write_folder
from turnout import Checkpoint, Result, RunConfig, ScalingConfig
from turnout.filesystem import arrow_filesystem


def busy_filesystem() -> Any:
    from fsspec.implementations.memory import MemoryFileSystem

    class Busy(MemoryFileSystem):
        asked: set[str]

        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            key = f"{mode} {path}"
            self.asked = getattr(self, "asked", set())
            if key not in self.asked:
                self.asked.add(key)
                raise OSError("the storage is busy; please try again")
            self.asked.discard(key)
            return super()._open(path, mode, **options)

    return arrow_filesystem(Busy(skip_instance_cache=True))


def test_a_run_and_its_readers_go_through_where_the_first_request_for_every_file_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filesystem, place = busy_filesystem(), f"/{uuid.uuid4().hex}"

    def train() -> int:
        checkpoint = turnout.get_checkpoint()
        start = 0
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                found = read_folder(folder)
            assert found.pop(".metadata.json") == b'{"note": 1}'
            start = int(found["optimizer/groups/0.json"].split(b":")[1].strip(b" }")) + 1
            assert found == payload(start - 1)
        source = tmp_path / str(start)
        write_folder(str(source), payload(start))
        turnout.report({"step": start}, Checkpoint(source))
        reported = turnout.get_checkpoint()
        assert reported is not None
        reported.update_metadata({"note": 1})
        return start

    for expected in range(2):
        trainer = turnout.DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(name="run", storage_path=place, storage_filesystem=filesystem),
        )
        assert trainer.fit().return_value == expected
    result = Result.from_path(f"{place}/run", filesystem)
    assert list(result.metrics_dataframe["step"]) == [0, 1]
    assert result.checkpoint is not None
    assert result.checkpoint.get_metadata() == {"note": 1}
    for refused in ("checkpoint", "metadata.json", "metrics.parquet", "run.json"):
        assert refused in "".join(line for line in caplog.text.splitlines() if "again in" in line), refused
