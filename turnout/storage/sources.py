"""What a rank offers for a checkpoint, and who of several ranks that offer the same path writes it.

`scan` reads a local folder; `assign` says, from all ranks' offers, where each file goes. It is a pure function of what
every rank was told, so that all ranks come to the same answer without asking again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from turnout.errors import CheckpointError, CheckpointNotFoundError
from turnout.storage.record import RECORD_FILE

__all__ = ["Assignment", "Offer", "SourceFile", "assign", "contested", "scan"]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to be stored, as it was when the folder was scanned.

    Args:
        path: within the checkpoint, with ``/``; an empty folder ends in one.
        source: where it lies, symbolic links not yet followed.
        size: bytes.
        mtime_ns: when it was last changed.
        inode: with the others, what tells whether it has changed since.
        is_own: whether the folder alone holds it: no symbolic link leads to it, and it has no other name. Only such a
            file may be taken without copying it, as others may still write to the rest.
    """

    path: str
    source: str
    size: int
    mtime_ns: int
    inode: int
    is_own: bool = True

    @property
    def is_folder(self) -> bool:
        """Whether it is an empty folder."""
        return self.path.endswith("/")

    def changed(self) -> str | None:
        """What has changed since the scan, in words; None if nothing has."""
        try:
            now = os.stat(self.source)
        except FileNotFoundError:
            return "it is gone"
        if now.st_size != self.size:
            return f"it held {self.size} bytes and holds {now.st_size}"
        if (now.st_mtime_ns, now.st_ino) != (self.mtime_ns, self.inode):
            return "it was written to or replaced"
        return None


Offer = list[tuple[str, int]]
"""What one rank tells the others of its files: path and size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Where one rank's files go.

    Args:
        targets: from a path of the offer to the path in the checkpoint; a file that another rank writes is left out.
        moved: the paths that had to make way for another rank's file, for the warning.
    """

    targets: dict[str, str]
    moved: list[str]


def scan(folder: str) -> list[SourceFile]:
    """All files under ``folder``, sorted by path; symbolic links are followed, to folders too.

    The commit record of a checkpoint that ``folder`` may be is left out: it is reserved.

    Raises:
        CheckpointNotFoundError: there is no such folder.
        CheckpointError: a file cannot be stored (a socket, a pipe, a device, a broken link, a link to a folder around
            it); the text names it.
    """
    if not os.path.isdir(folder):
        reason = (
            "is a file; a checkpoint is a folder: put the file into one" if os.path.exists(folder) else "is not there"
        )
        raise CheckpointNotFoundError(f"the checkpoint's folder {folder} {reason}")
    return sorted(_scanned(folder, "", ()), key=lambda file: file.path)


def contested(offers: Sequence[Offer | None]) -> set[str]:
    """The paths that several ranks offer with one size, so that only checksums tell whether the files are the same."""
    seen: dict[tuple[str, int], int] = {}
    for offer in offers:
        for path, size in offer or ():
            seen[path, size] = seen.get((path, size), 0) + 1
    return {path for (path, _), count in seen.items() if count > 1 and not path.endswith("/")}


def assign(offers: Sequence[Offer | None], checksums: Sequence[Mapping[str, str]]) -> list[Assignment]:
    """Deal the paths to the ranks: the lowest rank that offers one owns it.

    Another rank's file is left out if it is the same, else stored as ``rank_<n>/<path>``. That also happens to a file
    whose place a folder of a lower rank takes, and the other way round.

    Args:
        offers: what each rank offers; None for one that passed no checkpoint.
        checksums: each rank's own, of the paths that are `contested`.
    """
    owners: dict[str, tuple[int, int]] = {}  # path -> rank, size
    folders: set[str] = set()
    every_path = {path for offer in offers for path, _ in offer or ()}
    assignments = []
    for rank, offer in enumerate(offers):
        targets: dict[str, str] = {}
        moved = []
        mine: list[tuple[str, int]] = []
        for path, size in offer or ():
            owner = owners.get(path)
            if owner is not None:
                same = owner[1] == size and checksums[owner[0]].get(path) == checksums[rank].get(path)
                if same or path.endswith("/"):
                    continue
            elif not _clashes(path, owners, folders):
                targets[path] = path
                mine.append((path, size))
                continue
            moved.append(path)
            target = _beside(path, rank, every_path)
            every_path.add(target)
            targets[path] = target
            mine.append((target, size))
        for path, size in mine:
            owners[path] = (rank, size)
            folders.update(_parents(path))
        assignments.append(Assignment(targets=targets, moved=moved))
    return assignments


def _clashes(path: str, owners: Mapping[str, object], folders: set[str]) -> bool:
    """Whether a file stands where ``path`` needs a folder, or the other way round."""
    if path.endswith("/"):
        return path[:-1] in owners or any(parent in owners for parent in _parents(path))
    return path in folders or f"{path}/" in owners or any(parent in owners for parent in _parents(path))


def _beside(path: str, rank: int, taken: set[str]) -> str:
    folder = f"rank_{rank}"
    while True:
        target = f"{folder}/{path}"
        below = f"{target}/"
        clashes = target in taken or folder in taken or any(other.startswith(below) for other in taken)
        if not clashes and not any(parent in taken for parent in _parents(target)):
            return target
        folder += "_"


def _parents(path: str) -> Iterator[str]:
    position = path.rstrip("/").rfind("/")
    while position > 0:
        yield path[:position]
        position = path.rfind("/", 0, position)


def _scanned(
    folder: str, prefix: str, around: tuple[tuple[int, int], ...], is_own: bool = True
) -> Iterator[SourceFile]:
    info = os.stat(folder)
    here = (info.st_dev, info.st_ino)
    if here in around:
        raise CheckpointError(f"{folder}: a symbolic link to a folder that it lies in: the checkpoint would never end")
    empty = True
    for child in sorted(os.listdir(folder)):
        if child == RECORD_FILE and not prefix:
            continue
        empty = False
        source, path = os.path.join(folder, child), prefix + child
        is_link = os.path.islink(source)
        try:
            info = os.stat(source)
        except OSError as error:
            followed = f"a symbolic link to {os.readlink(source)}, which cannot be followed" if is_link else ""
            reason = followed or "cannot be read"
            raise CheckpointError(f"{source}: {reason}: {error.strerror}") from error
        if stat.S_ISDIR(info.st_mode):
            yield from _scanned(source, f"{path}/", (*around, here), is_own and not is_link)
        elif stat.S_ISREG(info.st_mode):
            alone = is_own and not is_link and info.st_nlink == 1
            yield SourceFile(path, source, info.st_size, info.st_mtime_ns, info.st_ino, alone)
        else:
            raise CheckpointError(f"{source}: {_kind(info.st_mode)} cannot be stored in a checkpoint; remove it")
    if empty and prefix:
        yield SourceFile(prefix, folder, 0, info.st_mtime_ns, info.st_ino)


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISCHR, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), "what is neither a file nor a folder")
