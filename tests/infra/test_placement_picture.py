"""The drawing of the placement, in a terminal of 80 columns and on pages."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import turnout.infra as infra
from tests.infra.programs import Model, Only
from turnout.errors import UsageError
from turnout.infra import DeviceGroup, DeviceMesh, get_device_placement, on_group


def build_three() -> None:
    infra.initialize("local", simulate=True, groups=[
        DeviceGroup("policy", 32, "cuda"), DeviceGroup("采样器", [32, 33], "cuda"), DeviceGroup("rewards", 3),
    ])  # fmt: skip
    mesh = DeviceMesh.from_sizes(pp_size=2, dp_size=4, tp_size=4, ep_size=4, vpp_size=2)
    on_group(Model, "policy")(device_mesh=mesh)
    on_group(Model, "采样器")(device_mesh=DeviceMesh.from_sizes(dp_size=1, tp_size=2))
    on_group(Model, "rewards")()
    on_group(Only, "rewards")()


def test_three_groups_with_meshes_are_drawn_right_in_80_columns() -> None:
    build_three()
    drawn = get_device_placement()
    lines = drawn.split("\n")
    assert {cell_len(line) for line in lines} == {80}
    assert lines[1].strip("║ ") == "DEVICE PLACEMENT TOPOLOGY"
    for told in (
        "DeviceGroup: policy", "DeviceGroup: 采样器", "DeviceGroup: rewards",
        "Device Type : cuda", "Ranks       : [32, 33]", "Ranks       : [0, 1, 2]",
        "[0, 1, 2, 3, 4, 5 ... 29, 30, 31] (32 in all)",
        "DeviceMesh: Model", "DeviceMesh: Only",
        "Dimensions  : pp=2 x dp=4 x tp=4", "Dimensions  : dp=1 x tp=2",
        "Parallelism : PP=2, DP=4, TP=4, EP=4, VPP=2", "Parallelism : TP=2", "Parallelism : none",
        "│ 0 │ 1 │ 2 │",
    ):  # fmt: skip
        assert told in drawn, told


@settings(deadline=None, max_examples=60)
@given(
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=90),
    st.integers(1, 40),
    st.sampled_from(["cuda", "cpu", "npu"]),
)
def test_every_line_is_as_wide_as_the_others_whatever_the_names(name: str, num: int, kind: str) -> None:
    drawn = get_device_placement([DeviceGroup(name, num, kind)])
    assert {cell_len(line) for line in drawn.split("\n")} == {80}


def test_large_meshes_are_shortened() -> None:
    infra.initialize("local", simulate=True, groups=[DeviceGroup("model", 8 * 12, "cuda")])
    on_group(Only, "model")()
    for mesh in (DeviceMesh.from_sizes(dp_size=96), DeviceMesh.from_sizes(dp_size=8, tp_size=12)):
        on_group(Model, "model")(device_mesh=mesh)
    drawn = get_device_placement()
    assert {cell_len(line) for line in drawn.split("\n")} == {80}
    assert "... │  95 │" in drawn


def test_nothing_to_draw_is_drawn_too() -> None:
    assert "no device groups" in get_device_placement([])
    assert "(no device meshes)" in get_device_placement([DeviceGroup("a", 1)])
    with pytest.raises(UsageError, match="takes one of 'text', 'html', 'svg'"):
        get_device_placement(format="png")


def test_pages_say_the_same() -> None:
    build_three()
    svg = ElementTree.fromstring(get_device_placement(format="svg"))
    words = " ".join(svg.itertext())

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.words: list[str] = []
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

        def handle_data(self, data: str) -> None:
            self.words.append(data)

    reader = Reader()
    reader.feed(get_device_placement(format="html"))
    assert not reader.open
    for told in ("DEVICE PLACEMENT TOPOLOGY", "DeviceGroup: 采样器", "DeviceMesh: Model", "PP=2, DP=4, TP=4, EP=4"):
        assert told in words
        assert told in " ".join(reader.words)
