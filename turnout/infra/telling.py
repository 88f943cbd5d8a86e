"""What a program is to be told although it has not asked: through its logging or, without any, on its console."""

from __future__ import annotations

import logging
import sys

__all__ = ["tell"]

_PACKAGE = __name__.partition(".")[0]


def tell(logger: logging.Logger, level: int, text: str) -> None:
    """Log something, and see to it that it is shown: the package's own handler shows nothing.

    Args:
        logger: of the module that tells.
        level: of `logging`.
        text: to tell.
    """
    logger.log(level, "%s", text)
    handlers = [*logging.root.handlers, *logging.getLogger(_PACKAGE).handlers]
    if all(isinstance(handler, logging.NullHandler) for handler in handlers) and sys.stderr is not None:
        sys.stderr.write(f"{logging.getLevelName(level)} {_PACKAGE}: {text}\n")
