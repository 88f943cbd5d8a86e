"""`Backend`: what sets up a framework's own process group on ranks that a controller has placed.

It gets ranks and a way for them to meet, and never a group of workers: so each backend works under each controller.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod

from turnout.config import BackendConfig
from turnout.session.collective import Collective
from turnout.session.events import RankInfo

__all__ = ["Backend", "backend_for"]


class Backend(ABC):
    """Sets up and tears down one framework's process group, on one rank.

    Args:
        config: the user's configuration, which is never changed.
    """

    def __init__(self, config: BackendConfig) -> None:
        self.config = config

    @abstractmethod
    def start(self, ranks: RankInfo, rendezvous: Collective) -> None:
        """Set up; called on every rank before the train function.

        Args:
            ranks: who this rank is.
            rendezvous: how the ranks tell each other what they need, such as rank 0's address.
        """

    def finish(self, rendezvous: Collective) -> None:  # noqa: B027  # most have nothing to do here
        """The train function has returned here, which nobody has been told yet; not called if it raised.

        For a framework that holds its ranks together: where it ends the others when one leaves, they leave together.

        Args:
            rendezvous: the same as for `start`.
        """

    @abstractmethod
    def stop(self, error: Exception | None) -> None:
        """Tear down what `start` set up; called also after the train function raised ``error``."""


def backend_for(config: BackendConfig | None) -> Backend | None:
    """The backend that ``config`` configures, imported now; None if it names none."""
    if config is None or config.backend_class is None:
        return None
    module, _, name = config.backend_class.partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)(config)
    return backend
