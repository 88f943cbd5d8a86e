"""Time one `report` that carries a checkpoint, in a run that is stored on the local disk.

    python checkpoint_report.py turnout | peer STORAGE SOURCE sync | async | async-keep

With async-keep the caller's folder stays; else that is left to the mode. Prints the seconds for which the call held the
train function, and the greatest memory of its process until the call had returned. Turnout's is this process, which
imports no torch; the peer trains in a worker of a cluster of its own.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any


def memory_mb(field: str) -> float:
    """A line of the kernel's account of this process, in MB (10^6 bytes): VmHWM is memory at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(field)


def of_turnout(storage: str, source: str, mode: str) -> dict[str, Any]:
    """The figures of Turnout, in process."""
    from turnout import Checkpoint, CheckpointUploadMode, DataParallelTrainer, RunConfig, ScalingConfig, report

    figures = {}

    def train_fn() -> None:
        checkpoint = Checkpoint.from_directory(source)
        upload_mode = CheckpointUploadMode[mode.partition("-")[0].upper()]
        delete = False if mode == "async-keep" else None
        started = time.perf_counter()
        report(
            {"loss": 0.5},
            checkpoint=checkpoint,
            checkpoint_upload_mode=upload_mode,
            delete_local_checkpoint_after_upload=delete,
        )
        figures["held_s"] = time.perf_counter() - started
        figures["peak_rss_mb"] = memory_mb("VmHWM")
        assert "torch" not in sys.modules

    run_config = RunConfig(name="run", storage_path=storage)
    DataParallelTrainer(train_fn, scaling_config=ScalingConfig(num_workers=0), run_config=run_config).fit()
    return figures


def of_peer(storage: str, source: str, mode: str) -> dict[str, Any]:
    """The figures of Ray Train, with one worker."""
    import ray
    from ray.train import Checkpoint, CheckpointUploadMode, RunConfig, ScalingConfig, report
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    answer = Path(storage) / "figures.json"

    def train_fn() -> None:
        checkpoint = Checkpoint.from_directory(source)
        upload_mode = CheckpointUploadMode[mode.partition("-")[0].upper()]
        delete = False if mode == "async-keep" else None
        started = time.perf_counter()
        report(
            {"loss": 0.5},
            checkpoint=checkpoint,
            checkpoint_upload_mode=upload_mode,
            delete_local_checkpoint_after_upload=delete,
        )
        held_s = time.perf_counter() - started
        answer.write_text(json.dumps({"held_s": held_s, "peak_rss_mb": memory_mb("VmHWM")}))

    ray.init(address="local", include_dashboard=False, num_cpus=2)
    try:
        run_config = RunConfig(name="run", storage_path=storage)
        DataParallelTrainer(train_fn, scaling_config=ScalingConfig(num_workers=1), run_config=run_config).fit()
    finally:
        ray.shutdown()
    figures: dict[str, Any] = json.loads(answer.read_text())
    return figures


if __name__ == "__main__":
    side, *arguments = sys.argv[1:]
    print(json.dumps({"turnout": of_turnout, "peer": of_peer}[side](*arguments)))
