"""What `fit()` shows on the console: what ranks print, and Turnout's messages if no logging is configured."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator

from turnout.config import LoggingConfig

__all__ = ["RankConsole", "console_logging"]

logger = logging.getLogger(__name__)

_package_logger = logging.getLogger(__name__.partition(".")[0])


class _Borrowed:
    """What overlapping runs share: the first keeps what the package's logger was, the last puts it back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_users = 0
        self.level = logging.NOTSET
        self.handler: logging.Handler | None = None


_borrowed = _Borrowed()


@contextlib.contextmanager
def console_logging(config: LoggingConfig | None) -> Iterator[None]:
    """Show Turnout's own messages while the block runs; once no block does, logging is as it was.

    Args:
        config: a level that the user asked for holds in any case; None means INFO, and only where the program has
            configured no logging itself.
    """
    with _borrowed.lock:
        _borrow(config)
    try:
        yield
    finally:
        with _borrowed.lock:
            _give_back()


class RankConsole:
    """Shows what ranks print on the standard output, each line once and with its rank before it."""

    def __init__(self) -> None:
        self._within_line: int | None = None
        """The rank whose line has not ended yet, if one has not."""
        self._can_show = True

    def show(self, rank: int, data: bytes) -> None:
        """Show what a rank has printed: whole lines, but for parts of a very long one."""
        text, mark = data.decode(errors="replace"), f"[rank {rank}] "
        text = text[:-1].replace("\n", f"\n{mark}") + text[-1:]
        if self._within_line != rank:
            text = "\n" * (self._within_line is not None) + mark + text
        self._within_line = None if text.endswith("\n") else rank
        if sys.stdout is None or not self._can_show:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError) as error:  # closed, full, or nobody reads it any more: no reason to end a run
            self._can_show = False
            logger.warning("what ranks print is shown no more, as the standard output cannot be written: %s", error)


def _borrow(config: LoggingConfig | None) -> None:
    own = [handler for handler in _package_logger.handlers if not isinstance(handler, logging.NullHandler)]
    is_configured = logging.root.hasHandlers() or any(handler is not _borrowed.handler for handler in own)
    if _borrowed.num_users == 0:
        _borrowed.level = _package_logger.level
    _borrowed.num_users += 1
    if not is_configured and _borrowed.handler is None:
        _borrowed.handler = logging.StreamHandler()
        _borrowed.handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s turnout: %(message)s", "%H:%M:%S"))
        _package_logger.addHandler(_borrowed.handler)
    if config is not None or not is_configured:
        _package_logger.setLevel((config or LoggingConfig()).log_level)


def _give_back() -> None:
    _borrowed.num_users -= 1
    if _borrowed.num_users > 0:
        return
    _package_logger.setLevel(_borrowed.level)
    if _borrowed.handler is not None:
        _package_logger.removeHandler(_borrowed.handler)
        _borrowed.handler = None
