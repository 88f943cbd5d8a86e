"""Runs every program with Ray Train and with Turnout, writes down what each has printed, and prints the table of it.

``python tests/compat/compare.py [program ...]``, from the root, with a minute for each program; `results.json` is what
`test_programs.py` holds Turnout to, and the table stands in `docs/migration.md`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.json"
SWITCHED = ("-m", "turnout.compat.ray_train")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
UNDER_TORCHRUN = "local under torchrun"

PROGRAMS = {
    "pytorch": "PyTorch: `prepare_model`, `prepare_data_loader`, a checkpoint an epoch",
    "local": "local mode, `num_workers=0`",
    UNDER_TORCHRUN: "the same program under `torchrun`, two processes",
    "checkpoints": "retention by score, a retry, and a second run that goes on",
    "callbacks": "`UserCallback`, and a rank that fails",
    "async_upload": "ASYNC uploads and validations",
    "collectives": "`barrier` and `broadcast_from_rank_zero`",
    "elastic": "`num_workers=(1, 2)`",
    "data": "Ray Data, one data set cut and one whole",
    "xgboost_trees": "XGBoost on two workers",
    "lightgbm_trees": "LightGBM on two workers",
    "lightning_module": "a Lightning module on two workers",
    "transformers_model": "a Transformers `Trainer` on two workers",
}


def results_of(start: tuple[str, ...], programs: list[str], **variables: str) -> dict[str, Any]:
    """What the programs print on one side."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        plain = [each for each in programs if each != UNDER_TORCHRUN]
        command = [sys.executable, *start, str(HERE / "run.py"), str(file), folder, *plain]
        if plain:
            subprocess.run(command, env=environment, check=True)
        results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if plain else {}
    if UNDER_TORCHRUN in programs:
        results[UNDER_TORCHRUN] = result_under_torchrun(start, environment)
    return results


def result_under_torchrun(start: tuple[str, ...], environment: dict[str, str]) -> Any:
    """What the local program prints on each rank."""
    command = [sys.executable, *TORCHRUN, *start, str(HERE / "programs" / "local.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [each.partition("RESULT ")[2] for each in done.stdout.splitlines() if "RESULT " in each]
    return sorted((json.loads(each) for each in lines), key=lambda each: each["ranks"]) or done.stderr[-500:]


def main(programs: list[str]) -> None:
    known: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for side, start in (("turnout", SWITCHED), ("ray.train", ())):
        for name, result in results_of(start, programs).items():
            known.setdefault(name, {})[side] = result
        ordered = {name: dict(sorted(known[name].items())) for name in PROGRAMS if name in known}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    for name, result in ordered.items():
        is_same = result["ray.train"] == result["turnout"]
        sys.stdout.write(f"| `{name}` | {PROGRAMS[name]} | {'the same' if is_same else 'differs'} |\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(PROGRAMS))
