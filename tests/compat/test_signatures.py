"""Every public name of Ray Train's V2 API is there, and is called as it is called there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnout.compat.ray_train.names import MODULES

# The others in the table are where Ray Train keeps what these export.
PUBLIC = [
    each
    for each in sorted(MODULES)
    if each.startswith("ray.train.v2.api.")
    or each
    in (
        "ray.train",
        "ray.train.collective",
        "ray.train.huggingface.transformers",
        "ray.train.lightgbm",
        "ray.train.lightning",
        "ray.train.tensorflow",
        "ray.train.tensorflow.keras",
        "ray.train.torch",
        "ray.train.v2.jax",
        "ray.train.xgboost",
    )
]

# What differs on purpose: by the name, the reason and the differences.
EXCEPTIONS = {
    "Result": (
        "only `fit` and `from_path` make one",
        ["takes _storage_filesystem elsewhere", "takes return_value elsewhere"],
    ),
    "ControllerError": (
        "only Turnout raises it, and says in its text what happened",
        ["takes no controller_failure"],
    ),
    "PreemptionError": (
        "only Turnout raises it, and says in its text which nodes went with which ranks",
        ["takes no preemption_info", "takes no drain_timed_out"],
    ),
    "RayTrainReportCallback": (
        "None means SYNC there",
        ["checkpoint_upload_mode is <CheckpointUploadMode.SYNC: 'SYNC'> by default, and not None"],
    ),
    "RayReportCallback": ("is a base class of Ray Train's own", ["is not there"]),
    "TrainContext": ("only Turnout makes one", ["needs run_name", "needs ranks", "needs checkpoints"]),
    "DistributedTrainContext": ("is TrainContext", ["needs run_name", "needs ranks", "needs checkpoints"]),
    "LocalTrainContext": (
        "is TrainContext",
        [
            *(f"takes no {each}" for each in ("experiment_name", "world_size", "world_rank", "local_rank")),
            *(f"takes no {each}" for each in ("local_world_size", "node_rank")),
            *("needs run_name", "needs ranks", "needs checkpoints"),
        ],
    ),
}

# What no class here has, and why.
ATTRIBUTES = {
    **dict.fromkeys(
        ("backend_cls", "framework", "to_dict", "train_func_context"),
        "of backends that drive a worker group; here the class's name is in BackendConfig.backend_class",
    ),
    **dict.fromkeys(("as_placement_group_factory", "from_placement_group_factory"), "of Ray Tune's"),
    **dict.fromkeys(("get_model", "get_preprocessor", "set_preprocessor"), "of a checkpoint that nobody can make here"),
    **dict.fromkeys(("distributed_sampler_kwargs", "root_device"), "of a strategy that nobody can make here"),
    "configure": "of a DataConfig that deals data sets itself; one that is derived with it is refused",
    "config": "raises there: Result.config is given up",
}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[str]]]:
    """What differs, by module and name."""
    program = Path(__file__).with_name("names.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(program), *PUBLIC],
        env=environment,
        capture_output=True,
        text=True,
        timeout=85,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return answer


@pytest.mark.timeout(90)
@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there_and_is_called_the_same(module: str, found: dict[str, dict[str, list[str]]]) -> None:
    missing = [f"has no {each}" for each in ATTRIBUTES]
    different = {name: [each for each in said if each not in missing] for name, said in found[module].items()}
    different = {name: said for name, said in different.items() if said}
    assert different == {name: said for name, (_, said) in EXCEPTIONS.items() if name in different}


def test_every_name_of_the_table_is_there() -> None:
    for source in MODULES.values():
        exported = importlib.import_module(source.module).__all__
        assert [name for name in source.names or () if name not in exported] == []


def test_the_exceptions_have_reasons_and_are_few() -> None:
    assert all(len(reason) > 10 for reason, _ in EXCEPTIONS.values())
    assert len(EXCEPTIONS) < 10
