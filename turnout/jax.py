"""What a user of JAX imports: `JaxTrainer` and its configuration."""

from turnout.backends.jax import JaxConfig
from turnout.trainer.jax import JaxTrainer

__all__ = ["JaxConfig", "JaxTrainer"]
