"""Trying again when a remote storage fails for a moment: with back-off, a deadline, and a word about why it is slow."""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from turnout.errors import StorageError
from turnout.filesystem import redacted

__all__ = ["RetryPolicy", "is_transient", "patiently", "storage_error"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What a request meets again however often it is made: words of S3, GCS and Azure, as pyarrow and fsspec pass them on.
_LASTING = (
    "access denied",
    "access_denied",
    "accessdenied",
    "forbidden",
    "http status 403",
    "http status 404",
    "invalid access key",
    "invalid_access_key_id",
    "invalidaccesskeyid",
    "invalid_signature",
    "signature_does_not_match",
    "signaturedoesnotmatch",
    "missing_authentication_token",
    "unrecognized_client",
    "invalid_client_token_id",
    "no_such_bucket",
    "nosuchbucket",
    "bucket does not exist",
    "no_such_key",
    "nosuchkey",
    "does not exist",
    "unauthorized",
    "credential",
    "invalid bucket name",
)
_LASTING_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_MOMENTARY_ERRNO = (errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    if not isinstance(error, OSError) or isinstance(error, _LASTING_ERRORS):
        return False
    if isinstance(error, (ConnectionError, TimeoutError)) or error.errno in _MOMENTARY_ERRNO:
        return True
    text = str(error).lower()
    return error.errno is None and not any(words in text for words in _LASTING)


def storage_error(doing: str, place: str, error: BaseException, remedy: str = "") -> StorageError:
    """The error to raise for ``error``; raise it ``from`` its ``__cause__``, which is left out if it tells a secret."""
    text = redacted(error) or type(error).__name__
    made = StorageError(f"{redacted(place)}: cannot {doing}: {text}" + (f". {remedy}" if remedy else ""))
    made.__cause__ = error if text == str(error) else None
    made.__suppress_context__ = True
    return made


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and for how long, a request is made again that failed for a moment.

    Args:
        deadline_s: no new try is begun when this much time has passed since the first.
        first_delay_s: the wait before the second try; each later one is twice as long, give or take a quarter.
        longest_delay_s: where the waits stop to grow.
        slow_s: a request that takes longer is logged, so that a run that crawls says why.
    """

    deadline_s: float = 60.0
    first_delay_s: float = 0.1
    longest_delay_s: float = 5.0
    slow_s: float = 5.0

    def call(self, function: Callable[[], T], doing: str, place: str, *, expected_s: float = 0.0) -> T:
        """Call ``function`` until it succeeds, fails for good, or the deadline has passed.

        Args:
            function: the request; must be safe to make again after it failed half-way.
            doing: what it does, for the log.
            place: the path that it is about, for the log.
            expected_s: how long it may take besides before it is called slow.

        Raises:
            OSError: as the last try raised it.
        """
        begin = time.monotonic()
        delay = self.first_delay_s
        tries = 0
        while True:
            tries += 1
            started = time.monotonic()
            try:
                result = function()
            except OSError as error:
                wait = delay * random.uniform(0.75, 1.25)
                left = self.deadline_s - (time.monotonic() - begin)
                if not is_transient(error) or left < wait:
                    if tries > 1:
                        error.add_note(f"Turnout tried {tries} times in {time.monotonic() - begin:.1f} s")
                    raise
                logger.warning(
                    "storage: cannot %s %s (try %d, again in %.1f s, giving up in %.0f s): %s",
                    doing,
                    redacted(place),
                    tries,
                    wait,
                    left,
                    redacted(error),
                )
                time.sleep(wait)
                delay = min(delay * 2, self.longest_delay_s)
                continue
            took = time.monotonic() - started
            if took > self.slow_s + expected_s:
                logger.warning("storage: to %s %s took %.1f s: the storage is slow", doing, redacted(place), took)
            return result


def patiently(function: Callable[[], T], doing: str, place: str) -> T:
    """Call ``function`` as `RetryPolicy` does; what it asks a remote storage may be asked again.

    Raises:
        FileNotFoundError: as the function raised it.
        StorageError: in place of any other OSError; without secrets.
    """
    try:
        return RetryPolicy().call(function, doing, place)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error(doing, place, error) from None
