"""Classes that the tests of infra build, in this process, simulated, and on Ray."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import turnout.infra as infra
from turnout.infra import DeviceMesh, on_group


@infra.remote_class()
class Model:
    def __init__(self, width: int = 1, device_mesh: DeviceMesh | None = None) -> None:
        self.width = width
        self.mesh = device_mesh
        self.calls: list[Any] = []

    @infra.remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, batch: Any) -> Any:
        return batch

    @infra.remote_function(dispatch="slice_dp")
    def parts(self, batch: Any) -> Any:
        return batch

    @infra.remote_function(dispatch="slice_dp", collect="mean")
    def loss(self, batch: list[float]) -> dict[str, float]:
        return {"loss": sum(batch) / len(batch)}

    @infra.remote_function(dispatch="slice_dp", collect="flatten", uneven="pad")
    def padded(self, batch: list[int]) -> list[int]:
        self.calls.append(len(batch))
        return [each * 10 for each in batch]

    @infra.remote_function(uneven="strict")
    def strict(self, batch: list[int]) -> list[int]:
        return batch

    @infra.remote_function(uneven="allow")
    def allowed(self, batch: list[int]) -> list[int]:
        return batch

    @infra.remote_function(dispatch="all", collect="sum")
    def seen(self) -> int:
        return sum(self.calls)

    @infra.remote_function(execute="first", collect="first")
    def note_first(self) -> int:
        self.calls.append(1)
        return len(self.calls)

    @infra.remote_function()
    def count(self) -> int:
        return len(self.calls)

    @infra.remote_function()
    def nothing(self) -> None:
        self.calls.append(None)

    @infra.remote_function()
    def outer(self) -> Any:
        return self.inner([1, 2])

    @infra.remote_function()
    def inner(self, batch: list[int]) -> list[int]:
        return batch

    @infra.remote_function(lazy_collect=False, collect="first")
    def eager(self) -> int:
        return self.width

    @infra.remote_function()
    def ranks(self) -> tuple[str | None, str | None, int | None]:
        rank = None if self.mesh is None else self.mesh.dp_rank
        return os.environ.get("RANK"), os.environ.get("WORLD_SIZE"), rank

    @infra.remote_function()
    def draws(self) -> list[float]:
        import numpy as np
        import torch

        return [random.random(), float(np.random.rand()), torch.rand(1).item()]

    @infra.remote_function(execute="peer")
    def served_by(self) -> int:
        return int(os.environ["RANK"])

    @infra.remote_function(dispatch="all")
    def ask_peers(self, other: Model) -> list[int]:
        return other.served_by()()

    @infra.remote_function(execute="first", collect="first")
    def build_inside(self) -> list[Any]:
        inside, own = on_group(Model, "sampler")(), on_group(Model, "model")(width=5)
        return [inside.rows([1, 2, 3, 4])(), own.rows([5])(), own.width]

    @infra.remote_function()
    def fail(self, text: str) -> None:
        raise RuntimeError(text)


@infra.remote_class(execute="first")
class Only:
    @infra.remote_function(collect="first")
    def world_size(self) -> str | None:
        return os.environ.get("WORLD_SIZE")


@infra.remote_class()
class Loader:
    """Batches of its rank, of which later ranks have fewer."""

    def __init__(self, num: int, device_mesh: DeviceMesh | None = None, fail_at: int | None = None) -> None:
        rank = 0 if device_mesh is None else device_mesh.dp_rank or 0
        self.batches = [f"{rank}:{number}" for number in range(num - rank)]
        self.fail_at = fail_at

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[str]:
        for number, batch in enumerate(self.batches):
            if number == self.fail_at:
                raise OSError("no more files")
            yield batch
