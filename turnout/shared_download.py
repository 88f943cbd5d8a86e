"""A remote folder's local copy that concurrent processes on a node share, removed after the last of them leaves.

Under the system's folder for temporary files each copy has a folder of its own, with a file for every user that names
its process. Whoever comes or goes does so under a file lock, and takes off the list those whose process is gone: a user
that was killed keeps no copy alive for longer than the next one stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from turnout.process_identity import ProcessIdentity
from turnout.retry import patiently

__all__ = ["shared_download"]


@contextlib.contextmanager
def shared_download(filesystem: Any, path: str, download: Callable[[str], object]) -> Iterator[str]:  # Any: pyarrow's
    """Give a local copy of ``path``, made by the first that comes.

    Args:
        filesystem: the `pyarrow.fs.FileSystem` that ``path`` lies on.
        path: the folder.
        download: puts the files into the local folder that it is given.

    Yields:
        The local folder; others read it too.
    """
    from filelock import FileLock

    root = _root()
    place = os.path.join(root, _key(filesystem, path))
    files, users = os.path.join(place, "files"), os.path.join(place, "users")
    mine = os.path.join(users, uuid.uuid4().hex)
    # The locks' files stay, since one that waits would else lock what no other sees; so they are few.
    lock = f"{place[:-30]}.lock"
    with FileLock(lock, mode=0o600):
        _forget_dead(users)
        if not os.path.isdir(files) or not os.listdir(users):
            shutil.rmtree(place, ignore_errors=True)
            os.makedirs(users)
            partial = tempfile.mkdtemp(dir=place)
            try:
                download(partial)
                os.rename(partial, files)
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
        with open(mine, "w", encoding="utf-8") as file:
            json.dump(asdict(ProcessIdentity.current()), file)
    try:
        yield files
    finally:
        with FileLock(lock, mode=0o600):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(mine)
            _forget_dead(users)
            if not os.path.isdir(users) or not os.listdir(users):
                shutil.rmtree(place, ignore_errors=True)


def _root() -> str:
    """This user's folder; another user's cannot be put in its place."""
    root = os.path.join(tempfile.gettempdir(), f"turnout-shared-{os.getuid()}")
    os.makedirs(root, mode=0o700, exist_ok=True)
    info = os.lstat(root)
    if info.st_uid != os.getuid() or not os.path.isdir(root) or os.path.islink(root):
        raise PermissionError(f"{root} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    return root


def _key(filesystem: Any, path: str) -> str:  # Any: pyarrow's
    """What tells one state of one folder from any other."""
    import pyarrow.fs

    hasher = hashlib.sha256(path.encode())
    kind = str(filesystem.type_name)
    # A filesystem in memory is another one in every process.
    hasher.update(f"{kind} {os.getpid()}".encode() if kind.endswith("memory") else pickle.dumps(filesystem))
    selector = pyarrow.fs.FileSelector(path, recursive=True)
    for info in sorted(patiently(lambda: filesystem.get_file_info(selector), "list", path), key=lambda i: i.path):
        if info.is_file:
            hasher.update(f"\0{info.path}\0{info.size}\0{info.mtime_ns}".encode())
    return hasher.hexdigest()[:32]


def _forget_dead(users: str) -> None:
    if not os.path.isdir(users):
        return
    for name in os.listdir(users):
        entry = os.path.join(users, name)
        try:
            with open(entry, encoding="utf-8") as file:
                user = ProcessIdentity(**json.load(file))
            gone = user.is_on_this_host and not user.is_alive
        except (OSError, ValueError, TypeError):
            gone = True  # written only in part: its process was killed at that
        if gone:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry)
