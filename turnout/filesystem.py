"""From a path or URI to the filesystem that it lies on: the one place that knows pyarrow's and fsspec's two worlds.

A filesystem of None means the local disk throughout Turnout: local paths need no pyarrow, and so do not import it.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from turnout.errors import MissingDependencyError, StorageError

__all__ = ["arrow_filesystem", "download", "kind_of", "local_filesystem", "redacted", "resolve_uri"]

# A wrong endpoint must fail within seconds, while a storage that takes ten seconds to answer must not.
_S3_CONNECT_TIMEOUT_S = 3.0
_S3_REQUEST_TIMEOUT_S = 60.0
_S3_ATTEMPTS = 2  # Turnout retries by itself, with a deadline and a word about why

_SECRETS = (
    # User and password of a URI, also where a slash in the password should have been written as %2F.
    (re.compile(r"(?<=://)(?:[^/@\s'\"]*|[^/@\s'\":]+:(?!\d*/)[^@\s'\"?]*)@"), "***@"),
    (re.compile(r"(?<=\w)(://[^\s?'\"]*)\?[^\s'\")]*"), r"\1?***"),  # its query
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b"), "***"),  # key ids of AWS
    (
        re.compile(
            r"""(?ix) (["']? [\w-]* (?: secret | password | passwd | token | access[_-]?key(?:[_-]?id)? | credential
            | signature | account[_-]?key ) [\w-]* ["']? \s* [=:] \s*) (?: "[^"]*" | '[^']*' | [^\s,;&)}'"]+ )"""
        ),
        r"\1***",
    ),
)


def redacted(text: object) -> str:
    """``text`` as it may stand in a log or an error: without passwords, keys, and the user and query parts of URIs."""
    shown = str(text)
    for pattern, replacement in _SECRETS:
        shown = pattern.sub(replacement, shown)
    return shown


def local_filesystem() -> Any:  # Any: pyarrow has no types
    """The local disk as a `pyarrow.fs.FileSystem`, for those who ask for one."""
    import pyarrow.fs

    return pyarrow.fs.LocalFileSystem()


def kind_of(filesystem: Any, path: str) -> str:  # Any: pyarrow has no types
    """What stands at ``path`` of a remote filesystem: ``"file"``, ``"folder"``, or ``""`` for nothing."""
    info = filesystem.get_file_info(path)
    return "file" if info.is_file else "" if info.type.name == "NotFound" else "folder"


def download(filesystem: Any, path: str, target: str) -> None:  # Any: pyarrow has no types
    """Copy a folder of a remote filesystem into a local one, which is made if need be."""
    import pyarrow.fs

    os.makedirs(target, exist_ok=True)
    pyarrow.fs.copy_files(path, target, source_filesystem=filesystem)


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
        uri: a local path, or a URI that pyarrow or fsspec understands. ``s3://`` takes pyarrow's query parameters
            (``region``, ``scheme``, ``endpoint_override`` and the rest).

    Raises:
        StorageError: neither pyarrow nor fsspec knows the scheme, or the URI cannot be read.
        MissingDependencyError: fsspec knows the scheme, but its client is not installed.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return None, os.path.abspath(os.path.expanduser(uri))
    if scheme == "file":
        return None, os.path.abspath("/" + unquote(rest.partition("/")[2]))
    if scheme == "s3":
        return _resolve_s3(uri)
    import fsspec
    import pyarrow
    import pyarrow.fs

    # No error is chained below: the text of the first may hold the URI with its secrets.
    shown = redacted(uri)
    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
        return filesystem, path.rstrip("/")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        not_arrow = redacted(error)
    except OSError as error:
        raise StorageError(f"{shown}: {redacted(error)}") from None
    try:
        inner, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        raise MissingDependencyError(
            f"fsspec's client of {scheme}://", redacted(error), f"storage at {shown}"
        ) from None
    except ValueError as error:
        reason = f"pyarrow: {not_arrow}; fsspec: {redacted(error)}"
        raise StorageError(f"{shown}: no filesystem is known for {scheme}:// ({reason})") from None
    return arrow_filesystem(inner), path.rstrip("/")


def _resolve_s3(uri: str) -> tuple[Any, str]:  # Any: pyarrow has no types
    """As `pyarrow.fs.S3FileSystem.from_uri`, whose filesystem however waits for minutes on a wrong endpoint."""
    import pyarrow
    import pyarrow.fs

    parts = urlsplit(uri)
    options: dict[str, Any] = dict(parse_qsl(parts.query))  # Any: text, but for the switches below
    for switch in ("allow_bucket_creation", "allow_bucket_deletion", "force_virtual_addressing"):
        if switch in options:
            options[switch] = options[switch].lower() in ("true", "1", "yes")
    if parts.username:
        options.update(access_key=unquote(parts.username), secret_key=unquote(parts.password or ""))
    bucket, path = parts.netloc.rpartition("@")[2], unquote(parts.path)
    if not bucket:
        raise StorageError(f"{redacted(uri)}: names no bucket; it reads s3://bucket/folder")
    if ":" in bucket:
        raise StorageError(f"{redacted(uri)}: names no bucket; a '/' in the password before '@' is written as %2F")
    if "region" not in options and "endpoint_override" not in options:
        try:
            options["region"] = pyarrow.fs.resolve_s3_region(bucket)
        except (OSError, pyarrow.ArrowException):
            pass  # the first request says what is wrong, with the bucket's name
    try:
        filesystem = pyarrow.fs.S3FileSystem(
            connect_timeout=_S3_CONNECT_TIMEOUT_S,
            request_timeout=_S3_REQUEST_TIMEOUT_S,
            retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS),
            **options,
        )
    except (TypeError, ValueError, OSError) as error:
        raise StorageError(f"{redacted(uri)}: the URI's parameters cannot be used: {redacted(error)}") from None
    return filesystem, (bucket + path).rstrip("/")
