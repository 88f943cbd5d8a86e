"""What a user of XGBoost imports: `XGBoostTrainer`, and what its train function calls to report and to resume."""

from turnout.backends.xgboost import XGBoostConfig
from turnout.integrations.xgboost import ReportCallback, resume
from turnout.trainer.xgboost import XGBoostTrainer

__all__ = ["ReportCallback", "XGBoostConfig", "XGBoostTrainer", "resume"]
