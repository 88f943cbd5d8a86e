"""What may stand as a train function, how it gets its configuration, and what the trainer refuses when it is built."""

from __future__ import annotations

import collections
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import turnout
from turnout import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, UsageError

IN_PROCESS = ScalingConfig(num_workers=0)


def two_required(config: Any, extra: Any) -> None: ...


def keyword_required(*, config: Any) -> None: ...


def generator(config: Any) -> Iterator[int]:
    yield 1


async def coroutine() -> None: ...


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Callable0:
    def __call__(self) -> str:
        return "called"

    def method(self, config: dict[str, int]) -> int:
        return config["x"]


class AsyncCallable:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (two_required, "two_required: requires the arguments config, extra"),
        (keyword_required, "keyword_required: requires the arguments config"),
        (generator, "generator: is a coroutine or generator"),
        (coroutine, "coroutine: is a coroutine or generator"),
        (async_generator, "async_generator: is a coroutine or generator"),
        (AsyncCallable(), "is a coroutine or generator"),
        (None, "train_loop_per_worker=None"),
        ("train", "train_loop_per_worker='train'"),
        (Callable0, "train_loop_per_worker=<class"),
        (functools.partial(functools.partial(generator, 1)), "is a coroutine or generator"),
        (functools.partial(coroutine), "is a coroutine or generator"),
        (functools.partial(two_required), "requires the arguments config, extra"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_train_function_is_refused_when_the_trainer_is_built(function: Any, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        DataParallelTrainer(function, scaling_config=IN_PROCESS)


@pytest.mark.parametrize("function", [lambda: coroutine(), lambda: generator(None), lambda: async_generator()])
def test_a_function_that_hands_back_what_nobody_runs_has_trained_nothing(function: Any) -> None:
    with pytest.raises(UsageError, match="which nobody runs"):
        DataParallelTrainer(function, scaling_config=IN_PROCESS).fit()


def optional(config: Any = "default", other: int = 3) -> Any:
    return config


def anything(*args: Any, **kwargs: Any) -> Any:
    return args


@pytest.mark.parametrize(
    ("function", "config", "returned"),
    [
        (lambda: "none", None, "none"),
        (lambda config: config, None, {}),
        (lambda config: config, {"x": 1}, {"x": 1}),
        (optional, None, "default"),
        (optional, {"x": 1}, {"x": 1}),
        (anything, None, ()),
        (anything, {"x": 1}, ({"x": 1},)),
        (Callable0(), None, "called"),
        (Callable0().method, {"x": 4}, 4),
        (functools.partial(two_required, extra=1), {"x": 1}, None),
        (functools.partial(two_required, 1, 2), None, None),
    ],
)
def test_a_function_is_called_with_the_config_if_it_takes_one(function: Any, config: Any, returned: Any) -> None:
    trainer = DataParallelTrainer(function, train_loop_config=config, scaling_config=IN_PROCESS)
    assert trainer.fit().return_value == returned


def test_a_config_that_the_function_does_not_take_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    DataParallelTrainer(lambda: None, train_loop_config={"x": 1}, scaling_config=IN_PROCESS)
    assert "train_loop_config is not used" in caplog.text


def test_what_the_function_does_to_its_config_does_not_reach_the_next_attempt_or_the_user() -> None:
    config = collections.OrderedDict(nested={"list": [1]}, lr=0.1)

    def train(config: dict[str, Any]) -> float:
        config["nested"]["list"].append(2)
        assert config["nested"]["list"] == [1, 2]
        lr: float = config.pop("lr")
        if not attempts:
            attempts.append(1)
            raise RuntimeError("once")
        return lr

    attempts: list[int] = []
    run_config = RunConfig(failure_config=FailureConfig(max_failures=1))
    trainer = DataParallelTrainer(train, train_loop_config=config, scaling_config=IN_PROCESS, run_config=run_config)
    assert trainer.fit().return_value == 0.1
    assert config == {"nested": {"list": [1]}, "lr": 0.1}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"scaling_config": 2}, "scaling_config=2: takes a turnout.ScalingConfig"),
        ({"scaling_config": ScalingConfig(controller="slurm")}, "no controller is named 'slurm'; known: 'local'"),
        ({"run_config": {}}, "run_config={}"),
        ({"datasets": [1]}, r"datasets=\[1\]"),
        ({"datasets": {1: []}}, r"datasets={1: \[\]}"),
        ({"dataset_config": 1}, "dataset_config=1"),
        ({"resume_from_checkpoint": "path"}, "resume_from_checkpoint='path'"),
        ({"metadata": 1}, "metadata=1"),
        ({"metadata": {"a": {(1, 2): 3}}}, "metadata=.*JSON cannot hold it"),
        ({"backend_config": 1}, "backend_config=1"),
        ({"validation_config": print}, "validation_config="),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_arguments_that_cannot_be_meant_are_refused_when_the_trainer_is_built(
    arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        DataParallelTrainer(lambda: None, **arguments)


def test_more_workers_than_the_controller_can_place_are_unsupported() -> None:
    with pytest.raises(turnout.UnsupportedError, match="num_workers=2"):
        DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=2, controller="local")).fit()


def test_the_trainer_can_fit_twice() -> None:
    trainer = DataParallelTrainer(lambda: turnout.report({"x": 1}), scaling_config=IN_PROCESS)
    assert trainer.fit().metrics == trainer.fit().metrics == {"x": 1}
