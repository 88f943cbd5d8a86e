"""XGBoost and LightGBM under torchrun, and what their faces import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnout
from tests.frameworks.boosting import Array, output_of, rows, share
from turnout import Result
from turnout.lightgbm import LightGBMTrainer, get_network_params
from turnout.lightgbm import ReportCallback as LightGBMReportCallback
from turnout.testing.ranks import warm_server
from turnout.testing.tracks import TORCHRUN
from turnout.xgboost import ReportCallback as XGBoostReportCallback
from turnout.xgboost import XGBoostTrainer

ROUNDS = 4


@pytest.fixture(scope="module", autouse=True)
def _warm(request: pytest.FixtureRequest) -> None:
    """One server for all three modules of boosters, instead of an import in every rank."""
    warm_server(request.config).start(["torch", "xgboost", "lightgbm"])


def grow_by_xgboost() -> tuple[bool, int]:
    import xgboost

    params = {"objective": "binary:logistic", "max_bin": 512}
    data = xgboost.DMatrix(*share())
    xgboost.train(
        params, data, ROUNDS, evals=[(data, "train")], callbacks=[XGBoostReportCallback()], verbose_eval=False
    )
    return xgboost.collective.is_distributed(), xgboost.collective.get_rank()


def grow_by_lightgbm() -> tuple[bool, int]:
    import lightgbm

    network = get_network_params()
    params = {"objective": "binary", "tree_learner": "data", "pre_partition": True, "verbosity": -1, **network}
    data = lightgbm.Dataset(*share())
    lightgbm.train(params, data, ROUNDS, [data], callbacks=[LightGBMReportCallback()]).free_network()
    return network.get("num_machines", 1) == 2, turnout.get_context().get_world_rank()


def predicted_by_xgboost(checkpoint: turnout.Checkpoint) -> Array:
    import xgboost

    model = XGBoostReportCallback.get_model(checkpoint)
    assert model.num_boosted_rounds() == ROUNDS
    predicted: Array = model.predict(xgboost.DMatrix(rows(seed=1)[0]))
    return predicted


def predicted_by_lightgbm(checkpoint: turnout.Checkpoint) -> Array:
    model = LightGBMReportCallback.get_model(checkpoint)
    assert model.current_iteration() == ROUNDS
    return np.asarray(model.predict(rows(seed=1)[0]))


WAYS: list[tuple[Any, Callable[[], Any], Callable[[turnout.Checkpoint], Array]]] = [
    (XGBoostTrainer, grow_by_xgboost, predicted_by_xgboost),
    (XGBoostTrainer, grow_by_xgboost, predicted_by_xgboost),  # once more: it finds what the run before has left
    (LightGBMTrainer, grow_by_lightgbm, predicted_by_lightgbm),
]


def train_in_every_way(fit: Callable[..., Result]) -> list[tuple[Any, Array]]:
    found = []
    for trainer, train_fn, predicted in WAYS:
        result = fit(train_fn, trainer=trainer)
        assert result.checkpoint is not None, "in memory every rank has its own"
        found.append((result.return_value, predicted(result.checkpoint)))
    return found


def test_under_torchrun_its_ranks_train_one_model_run_after_run() -> None:
    first, second = TORCHRUN.drive_everywhere(train_in_every_way)
    assert [value for value, _ in first] == [(True, 0)] * 3
    assert [value for value, _ in second] == [(True, 1)] * 3
    for (_, one), (_, other) in zip(first, second, strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(first[0][1], first[1][1])


@pytest.mark.parametrize("framework", ["xgboost", "lightgbm"])
def test_a_face_imports_no_framework_before_it_is_used(framework: str, tmp_path: Path) -> None:
    heavy = ("xgboost", "lightgbm", "torch", "ray", "numpy", "pandas", "pyarrow")
    program = f"import sys, turnout.{framework}; print([name for name in {heavy} if name in sys.modules])"
    assert output_of(program, tmp_path) == "[]\n"
