"""Room on a real disk, for benchmarks that write: where it is, of which kind, and that each turn finds it at rest.

Nothing is dropped from the page cache: all sides read what is in memory, as one does who stores what was just written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import ROOT

__all__ = ["filesystem_type", "fresh_folder", "room", "write_files"]

_IN_MEMORY = ("tmpfs", "ramfs")
_BLOCK = 1 << 20


@contextlib.contextmanager
def room() -> Iterator[Path]:
    """A folder on a disk, which is removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="turnout-bench-", dir=_parent()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()


@contextlib.contextmanager
def fresh_folder(place: Path, *, keep: bool = False) -> Iterator[Path]:
    """An empty folder for one turn of one side, with the disk at rest before the turn.

    Args:
        place: where it is made.
        keep: leave what the turn wrote until the room is removed. For many files: ext4 gives a new file no inode that
            was freed within the last half minute, and looks at each of those first, which takes longer than the copy.
    """
    folder = Path(tempfile.mkdtemp(prefix="turn-", dir=place))
    os.sync()
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def write_files(folder: Path, *, num_files: int, size: int) -> Path:
    """Fill a new folder with files of random bytes, on the disk when this returns.

    Args:
        folder: made by this.
        num_files: how many.
        size: bytes of each.
    """
    folder.mkdir()
    for number in range(num_files):
        with open(folder / f"part-{number:05d}.bin", "xb") as file:
            for start in range(0, size, _BLOCK):
                file.write(os.urandom(min(_BLOCK, size - start)))
    os.sync()
    return folder


def filesystem_type() -> str:
    """Of the disk that `room` is on, such as "ext4"."""
    return _type_at(_parent())


def _parent() -> Path:
    """The folder for temporary files, unless that is memory: then one in the checkout that git does not see."""
    folder = Path(tempfile.gettempdir())
    if _type_at(folder) in _IN_MEMORY:
        folder = ROOT / "build"
        folder.mkdir(exist_ok=True)
    return folder


def _type_at(folder: Path) -> str:
    mounts = Path("/proc/self/mountinfo")
    if not mounts.is_file():
        return "unknown"
    device = os.stat(folder).st_dev
    wanted, found = f"{os.major(device)}:{os.minor(device)}", "unknown"
    for line in mounts.read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if fields.split()[2] == wanted:
            found = kind.split()[0]
    return found
