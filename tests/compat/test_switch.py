"""The switch: what it changes, in which processes, what it refuses, and what it costs."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SWITCHED = ("-m", "turnout.compat.ray_train")


def run(
    *command: str,
    cwd: Path = ROOT,
    status: int = 0,
    timeout_s: float = 55.0,
    variables: Mapping[str, str] | None = None,
) -> str:
    """What a fresh interpreter prints; on both streams if it is to fail."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(variables or {})}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stdout + done.stderr


def answer(code: str) -> Any:
    """What a program prints in JSON."""
    return json.loads(run("-c", code))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def test_public_names_are_turnouts_and_all_others_are_rays(script: Path) -> None:
    script.write_text("""
import json, sys
import ray, ray.train
from ray.train import RunConfig, torch as ray_train_torch
from ray.train.v2.api.config import RunConfig as of_api
import ray.train._internal.utils as internal
import ray.data
from ray.train.torch import *
home = lambda thing: thing.__module__.partition(".")[0]
try:
    ray.train.no_such_name
except AttributeError as error:
    missing = str(error)
print(json.dumps({
    "turnout's": [home(each) for each in (ray.train.report, RunConfig, ray_train_torch.TorchTrainer, TorchConfig)],
    "one class": RunConfig is of_api,
    "ray's": [home(each) for each in (ray.init, ray.data.range, internal.count_required_parameters)],
    "by attribute": ray.train.constants.__name__,
    "private": home(ray.train._internal.utils.count_required_parameters),
    "missing": missing,
    "main": [__name__, sys.argv, sys.modules["__main__"].__file__ == __file__, __spec__ is None],
}))
""")
    found = json.loads(run(*SWITCHED, str(script), "one", "--two"))
    assert found["turnout's"] == ["turnout"] * 4
    assert found["one class"]
    assert found["ray's"] == ["ray"] * 3
    assert found["by attribute"] == "ray.train.constants"
    assert found["private"] == "ray"
    assert "'ray.train', which is Turnout's, has no attribute 'no_such_name'" in found["missing"]
    assert found["main"] == ["__main__", [str(script), "one", "--two"], True, True]


def test_what_cannot_be_switched_is_refused_with_the_reason() -> None:
    code = """
import json, os
from turnout.compat.ray_train import install
said = []
def refused():
    try:
        install()
    except ValueError as error:
        said.append(str(error))
os.environ["RAY_TRAIN_V2_ENABLED"] = "0"
refused()
del os.environ["RAY_TRAIN_V2_ENABLED"]
import ray.train
refused()
import ray.tune
refused()
print(json.dumps(said))
"""
    first, imported, tune = answer(code)
    assert "RAY_TRAIN_V2_ENABLED asks for Ray Train's first version" in first
    assert "ray.train is imported already" in imported
    assert "install() first" in imported
    assert "ray.tune is in use, so ray.train cannot be Turnout" in tune


def test_ray_tune_is_refused_afterwards_and_looking_for_it_is_not() -> None:
    code = """
import importlib.util, json
from turnout.compat.ray_train import install
install()
install()
found = importlib.util.find_spec("ray.tune") is not None
try:
    import ray.tune
except ImportError as error:
    print(json.dumps([found, str(error)]))
"""
    found, said = answer(code)
    assert found
    assert "ray.tune cannot be used while ray.train is Turnout: Ray Tune runs on the insides" in said


def test_a_process_that_does_not_use_it_has_no_trace_of_it() -> None:
    code = """
import sys, turnout, turnout.torch
for name in turnout.__all__: getattr(turnout, name)
print([name for name in sys.modules if "compat" in name and "turnout" in name], len(sys.meta_path))
"""
    assert run("-c", code).split() == ["[]", run("-c", "import sys; print(len(sys.meta_path))").strip()]


def test_the_switch_costs_a_tenth_of_a_second_at_most(script: Path) -> None:
    script.write_text("")

    def seconds(*start: str) -> float:
        """Of the processor, so that a busy machine does not count."""
        took = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run(*start, str(script))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(took)

    assert seconds(*SWITCHED) - seconds() < 0.1


def test_loading_the_switch_loads_nothing_heavy(script: Path) -> None:
    script.write_text(
        "import sys; print([name for name in ('ray', 'torch', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    assert run(*SWITCHED, str(script)).strip() == "[]"


WORKERS = """
import json, sys
import helpers
import ray.train
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

class Point:
    def __init__(self):
        self.context = ray.train.get_context()

def train_fn():
    from ray.train import get_context
    import ray.train.collective as collective
    collective.barrier()
    train.report({"rank": get_context().get_world_rank()})
    kinds = [helpers.size.__module__, type(Point().context).__module__, ray.train.report.__module__]
    return [helpers.size(), kinds]

if __name__ == "__main__":
    result = DataParallelTrainer(
        train_fn, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=sys.argv[1])
    ).fit()
    print("RESULT", json.dumps(result.return_values))
"""
HELPERS = """
import ray.train
from ray.train import get_context

def size():
    assert get_context is ray.train.get_context
    return get_context().get_world_size()
"""


def trained_on_workers(script: Path, **variables: str) -> Any:
    script.write_text(WORKERS)
    script.with_name("helpers.py").write_text(HELPERS)
    output = run(*SWITCHED, str(script), str(script.parent / "storage"), variables=variables)
    return json.loads(output.partition("RESULT ")[2])


WORKERS_SAY = [[2, ["helpers", "turnout.compat.ray_train.context", "turnout.session.functions"]]] * 2


def test_forked_ranks_are_switched_before_anything_is_unpickled(script: Path) -> None:
    assert trained_on_workers(script, TURNOUT_CONTROLLER="process") == WORKERS_SAY


@pytest.mark.on_ray
def test_actors_are_switched_before_anything_is_unpickled(script: Path) -> None:
    assert trained_on_workers(script) == WORKERS_SAY


def test_a_module_runs_as_python_would_run_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys, ray.train; from . import other; print(__package__, __spec__.name, sys.argv[1:], other.home)"
    )
    (package / "other.py").write_text("import ray.train; home = ray.train.report.__module__")
    output = run(*SWITCHED, "-m", "package", "-x", cwd=tmp_path)
    assert output.split() == ["package", "package.__main__", "['-x']", "turnout.session.functions"]


def test_what_cannot_be_run_is_said_in_one_line(tmp_path: Path) -> None:
    assert "usage: python -m turnout.compat.ray_train (script.py | -m module)" in run(*SWITCHED, status=2)
    output = run(*SWITCHED, "missing.py", cwd=tmp_path, status=2)
    assert output.strip() == "python -m turnout.compat.ray_train: can't open 'missing.py': No such file or directory"
    output = run(*SWITCHED, "-m", "no.such.module", status=2)
    assert output.strip() == "python -m turnout.compat.ray_train: No module named 'no'"


def test_a_script_that_fails_ends_as_it_would_under_python(script: Path) -> None:
    script.write_text("import sys\nsys.exit(3)")
    run(*SWITCHED, str(script), status=3)
    script.write_text("def inner():\n    raise KeyError('mine')\ninner()")
    assert f'File "{script}", line 2, in inner' in run(*SWITCHED, str(script), status=1)
