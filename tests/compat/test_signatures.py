"""Every public name of Ray Train's V2 API is there, and is called as it is called there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterator

import pytest

from tests.compat.names import differences, public_names, real
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
    "configure": "of a DataConfig that deals data sets itself; one that is derived with it is refused",
    "config": "raises there: Result.config is given up",
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The frameworks warn when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def source(module: str, name: str) -> object:
    """Turnout's of that name."""
    found = MODULES[module]
    assert found.names is None or name in found.names, f"{module}.{name} is not in the table"
    ours = importlib.import_module(found.module)
    assert name in getattr(ours, "__all__", []), f"{found.module} does not export {name}"
    value: object = getattr(ours, name)
    return value


def test_the_installed_ray_shows_its_second_version() -> None:
    assert os.environ.get("RAY_TRAIN_V2_ENABLED", "1") == "1"
    assert real("ray.train.v2._internal.constants", "is_v2_enabled")() is True  # type: ignore[operator]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there_and_is_called_the_same(module: str) -> None:
    found = {}
    for name in public_names(module):
        missing = [f"has no {each}" for each in ATTRIBUTES]
        different = [each for each in differences(real(module, name), source(module, name)) if each not in missing]
        if different:
            found[name] = different
    assert found == {name: different for name, (_, different) in EXCEPTIONS.items() if name in found}


def test_every_module_of_the_table_is_one_of_rays_and_all_its_names_are_there() -> None:
    for module, found in MODULES.items():
        assert importlib.util.find_spec(module) is not None, module
        for name in found.names or ():
            assert source(module, name) is not None


def test_the_exceptions_have_reasons_and_are_few() -> None:
    assert all(len(reason) > 10 for reason, _ in EXCEPTIONS.values())
    assert len(EXCEPTIONS) < 10
