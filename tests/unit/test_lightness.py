"""You pay for what you use: what importing and fitting loads, each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "ray", "pyarrow", "numpy", "pandas", "pytorch_lightning", "lightning", "fsspec", "rich")


def loaded_after(code: str) -> list[str]:
    program = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    return done.stdout.split()


def test_importing_turnout_loads_nothing_heavy() -> None:
    assert loaded_after("import turnout") == []


def test_taking_every_public_name_loads_nothing_heavy() -> None:
    assert loaded_after("import turnout\nfor name in turnout.__all__: getattr(turnout, name)") == []


def test_a_whole_fit_with_a_checkpoint_loads_nothing_heavy() -> None:
    code = """
import tempfile, turnout
def train():
    with tempfile.TemporaryDirectory() as folder:
        turnout.report({"x": 1}, turnout.Checkpoint.from_directory(folder))
result = turnout.DataParallelTrainer(train, scaling_config=turnout.ScalingConfig(num_workers=0)).fit()
with result.checkpoint.as_directory(): pass
"""
    assert loaded_after(code) == []


def test_a_remote_class_in_this_process_loads_nothing_heavy() -> None:
    code = """
import turnout.infra as infra
@infra.remote_class()
class Model:
    @infra.remote_function(collect="flatten")
    def rows(self, batch): return batch
with infra.initialize("local", simulate=True, groups=[infra.DeviceGroup("model", 2)]):
    assert Model(remote_group="model").rows([1, 2, 3])() == Model().rows([1, 2, 3])()
"""
    assert loaded_after(code) == []


def test_importing_the_torch_face_loads_torch_only_when_it_is_used() -> None:
    code = """
import turnout.torch as tt
tt.TorchTrainer(lambda: None, scaling_config=__import__("turnout").ScalingConfig(num_workers=0)).fit()
"""
    assert loaded_after(code) == []
