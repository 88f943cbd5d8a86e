"""What ranks print, as the driver shows it."""

from __future__ import annotations

import pytest

from turnout.runtime.console import RankConsole


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ([(0, b"a\n"), (1, b"b\n")], "[rank 0] a\n[rank 1] b\n"),
        ([(0, b"a\nb\n\nc\n")], "[rank 0] a\n[rank 0] b\n[rank 0] \n[rank 0] c\n"),
        ([(0, b"a\nb"), (0, b"c\nd\n")], "[rank 0] a\n[rank 0] bc\n[rank 0] d\n"),
        ([(0, b"half"), (1, b"b\n"), (0, b"way\n")], "[rank 0] half\n[rank 1] b\n[rank 0] way\n"),
        ([(0, b"10 %\r20 %\r"), (0, b"30 %\n")], "[rank 0] 10 %\r20 %\r30 %\n"),
        ([(0, b"\n"), (0, b"\xff\n")], "[rank 0] \n[rank 0] \ufffd\n"),
    ],
)
def test_every_line_has_its_rank_before_it_once(
    printed: list[tuple[int, bytes]], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    console = RankConsole()
    for rank, data in printed:
        console.show(rank, data)
    assert capsys.readouterr().out == shown
