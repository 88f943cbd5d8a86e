"""From a path or URI to the filesystem that it lies on: the one place that knows pyarrow's and fsspec's two worlds.

A filesystem of None means the local disk throughout Turnout: local paths need no pyarrow, and so do not import it.
"""

from __future__ import annotations

import os
from typing import Any

from turnout.errors import MissingDependencyError, StorageError

__all__ = ["arrow_filesystem", "resolve_uri"]


def arrow_filesystem(filesystem: Any) -> Any:  # Any: pyarrow has no types
    """Return ``filesystem`` as a `pyarrow.fs.FileSystem`, or None if it is the local disk.

    Args:
        filesystem: a filesystem of pyarrow's or of fsspec's, or None.
    """
    if filesystem is None:
        return None
    import pyarrow.fs

    if not isinstance(filesystem, pyarrow.fs.FileSystem):
        filesystem = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem))
    inner = getattr(getattr(filesystem, "handler", None), "fs", None)
    protocol = getattr(inner, "protocol", ())
    is_local = isinstance(filesystem, pyarrow.fs.LocalFileSystem) or "file" in (
        (protocol,) if isinstance(protocol, str) else protocol
    )
    return None if is_local else filesystem


def resolve_uri(uri: str) -> tuple[Any, str]:  # Any: pyarrow has no types
    """Split a URI into its `pyarrow.fs.FileSystem` and the path on it; a local path gives None and itself.

    Args:
        uri: a local path, or a URI that pyarrow or fsspec understands.

    Raises:
        StorageError: neither pyarrow nor fsspec knows the scheme, or the URI cannot be read.
        MissingDependencyError: fsspec knows the scheme, but its client is not installed.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return None, os.path.abspath(os.path.expanduser(uri))
    if scheme == "file":
        return None, os.path.abspath("/" + rest.partition("/")[2])
    import fsspec
    import pyarrow
    import pyarrow.fs

    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
        return filesystem, path.rstrip("/")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as not_arrow:
        try:
            inner, path = fsspec.core.url_to_fs(uri)
        except ImportError as error:
            raise MissingDependencyError(f"fsspec's client of {scheme}://", str(error), f"storage at {uri}") from error
        except ValueError as error:
            reason = f"pyarrow: {not_arrow}; fsspec: {error}"
            raise StorageError(f"{uri}: no filesystem is known for {scheme}:// ({reason})") from error
        return arrow_filesystem(inner), path.rstrip("/")
