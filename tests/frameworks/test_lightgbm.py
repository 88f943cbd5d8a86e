"""LightGBM on the tracks: one model of all ranks, a report each round, and an interrupted one that becomes the same."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import turnout
from tests.frameworks.boosting import ROUNDS, Array, refusals_with_version, refusals_without, rows, share, within
from turnout import DataConfig, FailureConfig, Result, RunConfig, ScalingConfig, UsageError
from turnout.backends import lightgbm as backend
from turnout.lightgbm import (
    LightGBMTrainer,
    ReportCallback,
    get_network_params,
    normalize_pandas_for_lightgbm,
    resume,
)
from turnout.testing.ranks import warm_server

# Nothing is left that LightGBM would have each rank estimate from its own rows.
PARAMS = {
    "objective": "binary",
    "tree_learner": "data",
    "pre_partition": True,
    "boost_from_average": False,
    "min_data_in_leaf": 1,
    "min_sum_hessian_in_leaf": 1.0,
    "num_leaves": 8,
    "force_col_wise": True,  # else LightGBM measures which way is faster, and sums in another order
    "verbosity": -1,
}
TOLERANCE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def _warm(request: pytest.FixtureRequest) -> None:
    """One server for all three modules of boosters."""
    warm_server(request.config).start(["xgboost", "lightgbm"])


def fit(train_fn: Callable[..., Any], folder: Path | None, num_workers: int = 0, **arguments: Any) -> Result:
    run_config = RunConfig(
        storage_path=None if folder is None else str(folder), failure_config=arguments.pop("failure_config", None)
    )
    scaling = ScalingConfig(num_workers, controller="process" if num_workers else None)
    return LightGBMTrainer(train_fn, scaling_config=scaling, run_config=run_config, **arguments).fit()


def grow(
    callbacks: list[Any], num_rounds: int = ROUNDS, model: lightgbm.Booster | None = None, **params: Any
) -> lightgbm.Booster:
    """Train on this rank's rows, in the bins of all."""
    data = lightgbm.Dataset(*share(), reference=lightgbm.Dataset(*rows(), params=PARAMS), params=PARAMS)
    return lightgbm.train(
        {**PARAMS, **get_network_params(), **params},
        data,
        num_rounds,
        valid_sets=[lightgbm.Dataset(*rows(seed=1), reference=data, params=PARAMS)],
        valid_names=["test"],
        init_model=model,
        callbacks=callbacks,
    )


def predictions_of(model: lightgbm.Booster) -> Array:
    return np.asarray(model.predict(rows(seed=1)[0]))


@pytest.fixture(scope="module")
def alone() -> tuple[Array, float]:
    """The predictions and the loss of LightGBM alone on all rows."""
    data = lightgbm.Dataset(*rows(), params=PARAMS)
    test = lightgbm.Dataset(*rows(seed=1), reference=data, params=PARAMS)
    model = lightgbm.train(PARAMS, data, ROUNDS, [test], ["test"])
    return predictions_of(model), model.best_score["test"]["binary_logloss"]


# In process


def test_each_round_is_a_report_and_the_last_has_the_model_of_lightgbm_alone(
    tmp_path: Path, alone: tuple[Array, float]
) -> None:
    result = fit(lambda: grow([ReportCallback()]) and None, tmp_path)
    assert result.metrics_dataframe is not None
    assert len(result.metrics_dataframe) == ROUNDS
    assert result.metrics == {"test-binary_logloss": alone[1]}
    assert result.checkpoint is not None
    model = ReportCallback.get_model(result.checkpoint)
    assert model.current_iteration() == ROUNDS
    assert np.array_equal(predictions_of(model), alone[0])


def reported(train: Callable[[], object]) -> list[tuple[dict[str, Any], bool]]:
    """The metrics of each report, and whether it had a checkpoint."""
    found = []

    class Collector(turnout.UserCallback):
        def after_report(
            self,
            run_context: turnout.TrainRunContext,
            metrics: list[dict[str, Any]],
            checkpoint: turnout.Checkpoint | None,
        ) -> None:
            found.append((metrics[0], checkpoint is not None))

    def train_fn() -> None:
        train()

    scaling = ScalingConfig(num_workers=0)
    LightGBMTrainer(train_fn, scaling_config=scaling, run_config=RunConfig(callbacks=[Collector()])).fit()
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [False, False, True]),
        ({"frequency": 1}, [True, True, True]),
        ({"frequency": 2}, [False, True, True]),
        ({"frequency": 2, "checkpoint_at_end": False}, [False, True, False]),
        ({"checkpoint_at_end": False}, [False, False, False]),
    ],
)
def test_the_model_goes_along_when_it_is_due(arguments: dict[str, Any], expected: list[bool]) -> None:
    found = reported(lambda: grow([ReportCallback(**arguments)], 3))
    assert [has_model for _, has_model in found] == expected


def test_metrics_are_chosen_and_renamed() -> None:
    found = reported(lambda: grow([ReportCallback({"loss": "test-binary_logloss"})], 1))
    assert list(found[0][0]) == ["loss"]
    with pytest.raises(UsageError, match=r"names 'eval-auc'; the metrics of a round are 'test-binary_logloss'"):
        reported(lambda: grow([ReportCallback(["eval-auc"])], 1))


def test_a_model_that_early_stopping_ends_is_reported_by_hand() -> None:
    def train() -> None:
        callback = ReportCallback()
        stopping = lightgbm.early_stopping(1, min_delta=10.0, verbose=False)
        callback.after_training(callback.after_training(grow([callback, stopping])))

    assert [has_model for _, has_model in reported(train)] == [False, False, True]


def test_cross_validation_reports_means_and_deviations_and_no_model() -> None:
    params = {name: value for name, value in PARAMS.items() if name not in ("tree_learner", "pre_partition")}

    def train() -> None:
        lightgbm.cv(params, lightgbm.Dataset(*rows()), 2, nfold=2, callbacks=[ReportCallback(frequency=1)])

    found = reported(train)
    assert [has_model for _, has_model in found] == [False, False]
    assert all(name.endswith(("-mean", "-stdv")) for name in found[0][0])
    assert len(found[0][0]) == 2


def test_there_is_no_network_for_one_rank_and_none_outside_a_run() -> None:
    assert fit(get_network_params, None).return_value == {}
    with pytest.raises(UsageError):
        get_network_params()


def test_frames_of_arrows_numbers_become_such_as_lightgbm_takes() -> None:
    table = pa.table(
        {"i": [1, 2], "u": pa.array([1, None], pa.uint8()), "f": [0.5, 1.5], "b": [True, None], "s": ["a", "b"]}
    )
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    frame["own"] = [1.0, 2.0]
    types = normalize_pandas_for_lightgbm(frame).dtypes.astype(str).to_dict()
    assert types.pop("s").startswith(("string", "large_string"))
    assert types == {"i": "Int64", "u": "UInt8", "f": "Float64", "b": "boolean", "own": "float64"}
    plain = frame[["own"]]
    assert normalize_pandas_for_lightgbm(plain) is plain
    columns = ["i", "u", "f", "b", "own"]
    lightgbm.Dataset(normalize_pandas_for_lightgbm(frame)[columns], [0, 1]).construct()


# Ports


def test_a_port_is_one_runs_alone_until_it_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    first, let_go = backend._claimed_port()
    second, let_second_go = backend._claimed_port()
    assert first != second
    monkeypatch.setattr(backend, "_candidates", lambda: iter([first, second]))
    with pytest.raises(turnout.ControllerError, match="no free port"):
        backend._claimed_port()
    let_go()
    with socket.create_server(("", first)), pytest.raises(turnout.ControllerError):
        backend._claimed_port()
    again, let_again_go = backend._claimed_port()
    assert again == first
    let_again_go()
    let_second_go()


def test_no_port_is_one_that_the_kernel_gives_to_whoever_asks() -> None:
    lowest, highest = backend._ephemeral_ports()
    assert 1024 <= lowest < highest <= 65_535
    assert all(not lowest <= port <= highest or (lowest, highest) == (1024, 65_535) for port in backend._candidates())


# Two ranks


def train_together() -> dict[str, Any]:
    model = grow([ReportCallback(frequency=4)])
    library = backend.imported_lightgbm("the test").basic._LIB
    return {"predictions": predictions_of(model), "num_threads": library.omp_get_max_threads()}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What came of two ranks with half of the rows each."""
    return fit(train_together, tmp_path_factory.mktemp("together"), num_workers=2)


def test_two_ranks_grow_one_model_as_good_as_that_of_lightgbm_alone(
    together: Result, alone: tuple[Array, float]
) -> None:
    first, second = together.return_values
    assert np.array_equal(first["predictions"], second["predictions"])
    assert together.metrics is not None
    assert together.metrics["test-binary_logloss"] == pytest.approx(alone[1], abs=TOLERANCE)


def test_two_ranks_report_each_round_once_and_rank_zero_brings_the_model(together: Result) -> None:
    assert together.metrics_dataframe is not None
    assert len(together.metrics_dataframe) == ROUNDS
    assert together.checkpoint is not None
    with together.checkpoint.as_directory() as folder:
        assert [name for name in os.listdir(folder) if not name.startswith(".")] == ["model.txt"]
    predictions = predictions_of(ReportCallback.get_model(together.checkpoint))
    assert np.array_equal(predictions, together.return_values[0]["predictions"])


def test_two_ranks_share_the_cores(together: Result) -> None:
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert [each["num_threads"] for each in together.return_values] == [share, share]


def interrupt(env: Any) -> None:
    """Raises after the sixth round, the first time."""
    if env.iteration == 5:
        raise InterruptedError("after 6 rounds")


def train_with_an_interruption() -> tuple[int, Array]:
    model, left = resume(ROUNDS)
    callbacks = [ReportCallback(frequency=3), *([interrupt] if model is None else [])]
    return left, predictions_of(grow(callbacks, left, model))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_interrupted_model_has_all_rounds_and_predicts_as_an_undisturbed_one(
    num_workers: int, tmp_path: Path, alone: tuple[Array, float], together: Result
) -> None:
    result = fit(
        train_with_an_interruption, tmp_path, num_workers=num_workers, failure_config=FailureConfig(max_failures=1)
    )
    expected = together.return_values[0]["predictions"] if num_workers else alone[0]
    for left, predictions in result.return_values:
        assert left == 4
        assert np.array_equal(predictions, expected)
    assert result.checkpoint is not None
    assert ReportCallback.get_model(result.checkpoint).current_iteration() == ROUNDS


def dataset_of(shard: Any, reference: lightgbm.Dataset | None = None) -> lightgbm.Dataset:
    frame = shard.to_pandas()
    return lightgbm.Dataset(frame.drop(columns="label"), frame["label"], reference=reference)


def train_twice_on_shards() -> list[Any]:
    """Two models, one after another, each with a network of its own."""
    losses, ports = [], []
    for _ in range(2):
        data = dataset_of(turnout.get_dataset_shard("train"))
        test = dataset_of(turnout.get_dataset_shard("test"), reference=data)
        network = get_network_params()
        model = lightgbm.train({**PARAMS, **network}, data, ROUNDS, [test], ["test"], callbacks=[ReportCallback()])
        losses.append(model.best_score["test"]["binary_logloss"])
        ports.append(network["local_listen_port"])
        model.free_network()
    return [losses, ports, network["machines"], data.num_data()]


def table(seed: int = 0) -> pa.Table:
    features, labels = rows(seed)
    return pa.table({**{f"f{number}": column for number, column in enumerate(features.T)}, "label": labels})


def test_ranks_train_on_their_shards_of_arrow_data_one_model_after_another(
    tmp_path: Path, alone: tuple[Array, float]
) -> None:
    result = fit(
        train_twice_on_shards,
        tmp_path,
        num_workers=2,
        datasets={"train": table(), "test": table(seed=1)},
        dataset_config=DataConfig(datasets_to_split=["train"]),
    )
    (first, first_ports, machines, _), (second, second_ports, _, _) = result.return_values
    assert first == second == pytest.approx([alone[1]] * 2, abs=0.05)  # each rank finds bins by its own rows
    assert len({*first_ports, *second_ports}) == 4
    assert machines == f"127.0.0.1:{first_ports[1]},127.0.0.1:{second_ports[1]}"
    assert [value[3] for value in result.return_values] == [100, 100]


def train_each_alone() -> None:
    grow([ReportCallback()], tree_learner="serial")


def train_unconnected() -> None:
    lightgbm.train(PARAMS, lightgbm.Dataset(*share()), 1, callbacks=[ReportCallback()])


def test_ranks_that_are_not_connected_are_told_once_what_would_have_them_train_together(tmp_path: Path) -> None:
    result = fit(train_unconnected, tmp_path, num_workers=2)
    assert result.path is not None
    said = "".join(path.read_text() for path in (Path(result.path) / "logs").iterdir())
    assert said.count("LightGBM trains a model of its own on each of 2 ranks, of which rank 0's is kept") == 1
    assert "get_network_params() to its parameters" in said


def test_ranks_that_are_connected_and_train_alone_all_the_same_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has connected the ranks, and trains a model of its own.*tree_learner"):
        fit(train_each_alone, tmp_path, num_workers=2)


# What goes wrong


def fail_in_the_middle(config: dict[str, str]) -> None:
    """Fails on rank 1 after the third round, when the other goes on to the next and waits in it."""

    def fail(env: Any) -> None:
        if env.iteration == 2 and turnout.get_context().get_world_rank() == 1:
            if config["how"] == "raises":
                raise LookupError("of the user's")
            os.kill(os.getpid(), signal.SIGKILL)

    grow([fail])


def test_an_error_of_one_rank_ends_the_run_while_another_waits_in_a_round(tmp_path: Path) -> None:
    with within(30), pytest.raises(LookupError, match="of the user's"):
        fit(fail_in_the_middle, tmp_path, num_workers=2, train_loop_config={"how": "raises"})


def test_the_death_of_one_rank_ends_the_run_while_another_waits_in_a_round(tmp_path: Path) -> None:
    with within(30), pytest.raises(turnout.WorkerGroupError, match="rank 1 was killed by SIGKILL"):
        fit(fail_in_the_middle, tmp_path, num_workers=2, train_loop_config={"how": "dies"})


def test_without_lightgbm_every_call_names_the_line_that_installs_it(tmp_path: Path) -> None:
    said = refusals_without("lightgbm", "LightGBMTrainer", tmp_path)
    assert len(said) == 4
    for line in said:
        assert "needs the package 'lightgbm', which is not installed" in line
        assert "pip install 'turnout[lightgbm]'" in line


def test_a_version_that_is_too_old_is_told_which_is_needed(tmp_path: Path) -> None:
    said = refusals_with_version("3.3.5", "lightgbm", "LightGBMTrainer", tmp_path)
    assert len(said) == 4
    for line in said:
        assert "needs lightgbm 4.3 or newer, and 3.3.5 is installed" in line
