"""How the ranks of a run become one TensorFlow cluster: `TensorflowConfig` names it, `TensorflowBackend` sets it up."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import ClassVar

from turnout.backends.base import Backend
from turnout.backends.keras_ranks import correct_keras
from turnout.backends.own_port import HeldPort, own_address
from turnout.backends.variables import LentVariables
from turnout.checks import refused
from turnout.config import BackendConfig
from turnout.dependency import imported
from turnout.session.collective import Collective
from turnout.session.events import RankInfo

__all__ = ["TensorflowBackend", "TensorflowConfig"]

_OLDEST = "2.16"  # which brings Keras 3


@dataclass(frozen=True, slots=True, repr=False)
class TensorflowConfig(BackendConfig):
    """How the ranks of a run become one TensorFlow cluster. There is nothing to choose.

    Each rank finds ``TF_CONFIG`` set, and is a worker of that cluster, the number of its rank: what
    `tf.distribute.MultiWorkerMirroredStrategy` looks for.
    """

    backend_class: ClassVar[str | None] = "turnout.backends.tensorflow:TensorflowBackend"
    preload: ClassVar[tuple[str, ...]] = ("tensorflow",)


class TensorflowBackend(Backend):
    """Sets ``TF_CONFIG``, with a port for each rank that nobody else gets until the run is over.

    TensorFlow binds the port by itself, when the train function makes its strategy.

    Args:
        config: the user's configuration.
    """

    config: TensorflowConfig

    def __init__(self, config: BackendConfig) -> None:
        if not isinstance(config, TensorflowConfig):
            raise refused("tensorflow_config", config, "takes a turnout.tensorflow.TensorflowConfig")
        super().__init__(config)
        self._cleanup = contextlib.ExitStack()

    def start(self, ranks: RankInfo, rendezvous: Collective) -> None:
        """Tell all ranks of each other's addresses.

        Raises:
            MissingDependencyError: TensorFlow is not installed here, or too old.
        """
        imported("tensorflow", at_least=_OLDEST, extra="tensorflow", needed_by="TensorflowTrainer")
        with contextlib.ExitStack() as cleanup:
            port = HeldPort()  # on all addresses, as TensorFlow's server binds
            cleanup.callback(port.release)
            workers = rendezvous.gather("tensorflow's addresses", f"{own_address(ranks)}:{port.number}")
            cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": ranks.rank}}
            variables = LentVariables()
            cleanup.callback(variables.put_back)
            # Without the second it would find its port taken.
            variables.set({"TF_CONFIG": json.dumps(cluster), "TF_GRPC_REUSE_PORT": "1"})
            if ranks.world_size > 1:
                cleanup.callback(correct_keras())
            self._cleanup = cleanup.pop_all()

    def finish(self, rendezvous: Collective) -> None:
        """Wait for the others: TensorFlow ends the processes of those whose leader has gone."""
        rendezvous.barrier("the end of the train function")

    def stop(self, error: Exception | None) -> None:
        """Put the environment and Keras back, and let the port go."""
        self._cleanup.close()
