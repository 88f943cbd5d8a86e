"""How batches reach a device, without a run: what is moved out of which containers, and the order of prefetching.

The meta device stands for an accelerator: tensors that were moved there can be told from those that were not.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import multiprocessing
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset

from turnout.integrations.torch_data import PreparedDataLoader, moved

META = torch.device("meta")


class Point(NamedTuple):
    x: Any
    label: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    x: Any
    label: str
    total: Any = dataclasses.field(init=False, default=None)


class Numbers(Dataset[torch.Tensor]):
    """0, 1, 2, ... as tensors."""

    def __init__(self, size: int = 6) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


def as_none(items: list[torch.Tensor]) -> None:
    return None


# Kinds of batches


def test_nested_containers_keep_their_types_and_their_tensors_are_moved() -> None:
    x = torch.ones(1)
    batch = {"a": [x, (x, Point(x, "b"))], 3: collections.OrderedDict(c=x), "d": None, "e": "text", "f": np.ones(1)}
    result = moved(batch, META)
    assert type(result) is dict
    assert result["a"][0].device == result["a"][1][0].device == result["a"][1][1].x.device == META
    assert [type(each) for each in (result["a"], result["a"][1], result["a"][1][1])] == [list, tuple, Point]
    assert type(result[3]) is collections.OrderedDict
    assert result[3]["c"].device == META
    assert (result["d"], result["e"], result["f"]) == (None, "text", batch["f"])
    assert list(result) == list(batch)


def test_moving_changes_no_container_of_the_users() -> None:
    x = torch.ones(1)
    inner = [x]
    batch = collections.UserDict(a=inner)
    result = moved(batch, META)
    assert result["a"][0].device == META
    assert batch["a"] is inner
    assert inner == [x]


@pytest.mark.parametrize(
    "batch",
    [
        None,
        "text",
        7,
        np.ones(2),
        {"a": [1, ("b",)]},
        [torch.ones(1)],
        Point(1, 2),
        torch.Size([2]),
        Sample(1, "a"),
        Sample,
        object(),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_what_need_not_move_is_returned_as_it_is(batch: Any) -> None:
    assert moved(batch, torch.device("cpu")) is batch


def test_a_dataclass_arrives_on_the_device_though_it_is_frozen() -> None:
    sample = Sample(torch.ones(1), "a")
    object.__setattr__(sample, "total", torch.ones(1))
    result = moved(sample, META)
    assert type(result) is Sample
    assert (result.x.device, result.total.device, result.label) == (META, META, "a")
    assert sample.x.device.type == "cpu"


def test_a_subclass_of_list_keeps_its_class_and_attributes() -> None:
    class Boxes(list[torch.Tensor]):
        image = ""

    boxes = Boxes([torch.ones(1)])
    boxes.image = "a.png"
    result = moved(boxes, META)
    assert (type(result), result.image, result[0].device) == (Boxes, "a.png", META)


def test_a_mapping_that_cannot_be_written_becomes_a_dict() -> None:
    result = moved(types.MappingProxyType({"a": torch.ones(1)}), META)
    assert type(result) is dict
    assert result["a"].device == META


def test_the_tuples_that_torch_returns_keep_their_type() -> None:
    result = moved(torch.ones(2, 2).max(0), META)
    assert type(result) is torch.return_types.max
    assert (result.values.device, result.indices.device) == (META, META)


def test_a_container_that_can_move_itself_does() -> None:
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    result = moved(packed, META)
    assert isinstance(result, PackedSequence)
    assert (result.data.device, result.batch_sizes.device.type) == (META, "cpu")

    class Encoding(collections.UserDict[str, torch.Tensor]):
        def to(self, device: torch.device) -> str:
            return f"moved to {device}"

    assert moved([Encoding(a=torch.ones(1))], META) == ["moved to meta"]


# Prefetching


class FakeStream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class FakeTensor(torch.Tensor):
    """A tensor on the CPU that behaves as if it could be copied to CUDA, and writes down what is done with it."""

    written: list[str]
    active: list[str]
    is_on_cuda = False

    def to(self, device: torch.device, non_blocking: bool = False) -> FakeTensor:  # type: ignore[override]
        copied = self.as_subclass(FakeTensor)
        copied.is_on_cuda = True
        self.written.append(f"copy {int(self)} on {self.active[-1]}, non_blocking={non_blocking}")
        return copied

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda:0" if self.is_on_cuda else "cpu")

    def record_stream(self, stream: FakeStream) -> None:  # type: ignore[override]
        self.written.append(f"{stream.name} uses {int(self)}")


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """CUDA's streams, written down instead of run: their order is what prefetching is about."""
    log: list[str] = []
    active = ["user"]

    @contextlib.contextmanager
    def entered(stream: FakeStream) -> Iterator[None]:
        active.append(stream.name)
        yield
        active.pop()

    monkeypatch.setattr(FakeTensor, "written", log, raising=False)
    monkeypatch.setattr(FakeTensor, "active", active, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("side", log))
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(active[-1], log))
    return log


def on_cuda(loader: DataLoader[Any], prefetch: bool = True) -> PreparedDataLoader:
    return PreparedDataLoader(loader, torch.device("cuda:0"), prefetch)


def as_fake(items: list[torch.Tensor]) -> dict[str, Any]:
    return {"x": torch.stack(items).sum().as_subclass(FakeTensor), "name": "text"}


def test_on_cuda_the_next_batch_is_copied_on_a_stream_of_its_own_while_one_is_in_use(fake_cuda: list[str]) -> None:
    for batch in on_cuda(DataLoader(Numbers(3), collate_fn=as_fake)):
        fake_cuda.append(f"train on {int(batch['x'])}")
    assert fake_cuda == [
        "copy 0 on side, non_blocking=True",
        "user waits for side",
        "user uses 0",
        "copy 1 on side, non_blocking=True",
        "train on 0",
        "user waits for side",
        "user uses 1",
        "copy 2 on side, non_blocking=True",
        "train on 1",
        "user waits for side",
        "user uses 2",
        "train on 2",
    ]


def test_on_cuda_without_prefetching_each_batch_is_copied_when_it_is_asked_for(fake_cuda: list[str]) -> None:
    for batch in on_cuda(DataLoader(Numbers(2), collate_fn=as_fake), prefetch=False):
        fake_cuda.append(f"train on {int(batch['x'])}")
    assert fake_cuda == [
        "copy 0 on user, non_blocking=False",
        "train on 0",
        "copy 1 on user, non_blocking=False",
        "train on 1",
    ]


def test_a_batch_of_none_does_not_end_a_prefetched_epoch(fake_cuda: list[str]) -> None:
    assert list(on_cuda(DataLoader(Numbers(3), collate_fn=as_none))) == [None, None, None]
    assert list(on_cuda(DataLoader(Numbers(0), batch_size=None))) == []


def test_an_error_in_the_batch_that_is_prefetched_comes_after_the_batch_before_it(fake_cuda: list[str]) -> None:
    def fail_on_one(items: list[torch.Tensor]) -> dict[str, Any]:
        if items[0] == 1:
            raise LookupError("row 1 is broken")
        return as_fake(items)

    batches = iter(on_cuda(DataLoader(Numbers(3), collate_fn=fail_on_one)))
    assert next(batches)["x"] == 0
    with pytest.raises(LookupError, match="row 1 is broken"):
        next(batches)


def test_breaking_off_a_prefetched_epoch_ends_its_workers(fake_cuda: list[str]) -> None:
    prepared = on_cuda(DataLoader(Numbers(), num_workers=1, collate_fn=as_none))
    for _ in prepared:
        break
    gc.collect()
    assert multiprocessing.active_children() == []
