"""Fixtures of all tests: the police, and a clean environment."""

from __future__ import annotations

import signal

from turnout.testing.surroundings import nothing_left_behind, own_environment

__all__ = ["nothing_left_behind", "own_environment"]


def pytest_configure() -> None:
    """A shell has what it runs in the background ignore interrupts, and all that comes of it: some tests send them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
