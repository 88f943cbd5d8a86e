"""What a type checker sees: the decorators keep the methods' signatures, and know what comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from typing import Any
import turnout.infra as infra
from turnout.infra import DeviceMesh, on_group

def longest(results: list[Any], device_mesh: DeviceMesh) -> float: ...

@infra.remote_class()
class Model:
    def __init__(self, width: int, device_mesh: DeviceMesh | None = None) -> None: ...
    @infra.remote_function(dispatch="slice_dp", collect="mean")
    def step(self, batch: list[str], *, scale: float = 1.0) -> dict[str, float]: ...
    @infra.remote_function()
    def each(self) -> int: ...
    @infra.remote_function(collect=longest)
    def own(self) -> bytes: ...
    @infra.remote_function(lazy_collect=False, collect="flatten")
    def eager(self, batch: list[str]) -> list[str]: ...

model = on_group(Model, "model")(128)
reveal_type(model)
reveal_type(model.step(["a"], scale=2))
reveal_type(model.step(["a"])())
reveal_type(model.each())
reveal_type(model.own()())
reveal_type(model.eager(["a"]))
model.step([1])
model.step(["a"], 2.0)
model.eager()
Model("wide")
on_group(Model, "model")("wide")
"""


CONFIG = """
[mypy]
strict = true
disable_error_code = empty-body
follow_imports = silent
[mypy-torch.*,numpy.*,ray.*,pyarrow.*,rich.*,cloudpickle.*,turnout.cluster.*,turnout.infra.ray.*,turnout.controllers.*]
follow_imports = skip
ignore_missing_imports = true
"""


def test_the_methods_keep_their_signatures_for_a_type_checker(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    environment = {**os.environ, "MYPYPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", os.devnull, "program.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=58, check=False,
    )  # fmt: skip
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines() if "note: Revealed" in line]
    assert lines == [
        'note: Revealed type is "program.Model"',
        'note: Revealed type is "turnout.infra.lazy_collect.LazyCollect[dict[str, float]]"',
        'note: Revealed type is "dict[str, float]"',
        'note: Revealed type is "turnout.infra.lazy_collect.LazyCollect[list[int]]"',
        'note: Revealed type is "float"',
        'note: Revealed type is "list[str]"',
    ], done.stdout + done.stderr
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert [line.partition("[")[2] for line in errors] == [
        "list-item]", "call-arg]", "call-arg]", "arg-type]", "arg-type]"
    ], done.stdout  # fmt: skip
