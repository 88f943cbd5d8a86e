"""An interrupt and SIGUSR1, for a driver that waits for its ranks: both wake its loop, and are acted on there."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["signals_handled"]


@contextlib.contextmanager
def signals_handled(
    *, on_interrupt: Callable[[], None] | None, on_ask: Callable[[], None], wake_fd: int
) -> Iterator[None]:
    """Handle signals while the block runs; the handlers that stood before stand again afterwards.

    A handler of the user's own is left alone, and so is everything if this is not the main thread.

    Args:
        on_interrupt: for SIGINT, twice at most; a third is a `KeyboardInterrupt` on the spot. None leaves it as it is.
        on_ask: for SIGUSR1.
        wake_fd: is written to whenever a signal comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    num_interrupts = 0

    def interrupt(number: int, frame: Any) -> None:  # Any: as `signal` passes it
        nonlocal num_interrupts
        num_interrupts += 1
        if num_interrupts > 2 or on_interrupt is None:
            raise KeyboardInterrupt
        on_interrupt()

    with contextlib.ExitStack() as cleanup:
        if on_interrupt is not None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            cleanup.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, interrupt))
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            cleanup.callback(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, lambda *_: on_ask()))
        previous = signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        if previous != -1:  # an event loop of the user's owns it
            signal.set_wakeup_fd(previous)
        else:
            cleanup.callback(signal.set_wakeup_fd, -1)
        yield
