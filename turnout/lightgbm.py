"""What a user of LightGBM imports: `LightGBMTrainer`, and what its train function calls to connect and report."""

from turnout.backends.lightgbm import LightGBMConfig, get_network_params
from turnout.integrations.lightgbm import ReportCallback, normalize_pandas_for_lightgbm, resume
from turnout.trainer.lightgbm import LightGBMTrainer

__all__ = [
    "LightGBMConfig",
    "LightGBMTrainer",
    "ReportCallback",
    "get_network_params",
    "normalize_pandas_for_lightgbm",
    "resume",
]
