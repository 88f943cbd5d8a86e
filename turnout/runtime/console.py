"""Console output for programs that have configured no logging of their own, for as long as `fit()` runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from turnout.config import LoggingConfig

__all__ = ["console_logging"]

_package_logger = logging.getLogger(__name__.partition(".")[0])


@contextlib.contextmanager
def console_logging(config: LoggingConfig | None) -> Iterator[None]:
    """Show Turnout's own messages while the block runs; afterwards logging is as it was.

    Args:
        config: a level that the user asked for holds in any case; None means INFO, and only where the program has
            configured no logging itself.
    """
    is_configured = logging.root.hasHandlers() or any(
        not isinstance(handler, logging.NullHandler) for handler in _package_logger.handlers
    )
    level = _package_logger.level
    handler = None
    if not is_configured:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s turnout: %(message)s", "%H:%M:%S"))
        _package_logger.addHandler(handler)
    if config is not None or not is_configured:
        _package_logger.setLevel((config or LoggingConfig()).log_level)
    try:
        yield
    finally:
        _package_logger.setLevel(level)
        if handler is not None:
            _package_logger.removeHandler(handler)
