"""Train `digits.py` on every track, as it stands, and show what came of it: the same losses, whatever ran them.

python examples/all_tracks.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from turnout import Result

DIGITS = Path(__file__).with_name("digits.py")


class Track(NamedTuple):
    """How the program is started.

    Args:
        name: the track's.
        processes: that train.
        launcher: what comes between ``python`` and the program.
        variables: that choose the track; without them the program's own ``num_workers=0`` does.
    """

    name: str
    processes: str
    launcher: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


TRACKS = (
    Track("in-process", "this one"),
    Track("torchrun", "2 by torchrun", ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")),
    Track("process", "2 forks", (), (("TURNOUT_NUM_WORKERS", "2"), ("TURNOUT_CONTROLLER", "process"))),
    Track("Ray", "2 actors", (), (("TURNOUT_NUM_WORKERS", "2"), ("TURNOUT_CONTROLLER", "ray"))),
)


def run(track: Track, storage: str) -> tuple[Result, float]:
    """Train on one track; returns the result, read back from storage, and the seconds of the whole program."""
    variables = {**os.environ, **dict(track.variables), "TURNOUT_STORAGE_PATH": storage}
    started = time.monotonic()
    subprocess.run([sys.executable, *track.launcher, str(DIGITS)], env=variables, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - started
    [folder] = Path(storage).iterdir()
    return Result.from_path(folder), seconds


def main() -> None:
    """Run the program on every track, and show a table."""
    table = Table(title="digits on every track")
    for heading in ("track", "processes", "loss", "accuracy", "checkpoints", "seconds"):
        table.add_column(heading, justify="left" if heading in ("track", "processes") else "right")
    console = Console(highlight=False)
    for track in TRACKS:
        with tempfile.TemporaryDirectory() as storage, console.status(f"training on the track {track.name}"):
            result, seconds = run(track, storage)
            assert result.metrics is not None
            table.add_row(
                track.name,
                track.processes,
                f"{result.metrics['loss']:.4f}",
                f"{result.metrics['accuracy']:.3f}",
                str(len(result.best_checkpoints or [])),
                f"{seconds:.1f}",
            )
    console.print(table)


if __name__ == "__main__":
    main()
