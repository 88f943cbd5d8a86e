"""`TorchConfig`: checked when it is built, and never changed after."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from turnout.backends.torch import TorchConfig
from turnout.config import BackendConfig
from turnout.errors import UsageError


def test_the_defaults_leave_the_backend_to_the_device_and_wait_half_an_hour() -> None:
    config = TorchConfig()
    assert isinstance(config, BackendConfig)
    assert (config.backend, config.init_method, config.timeout_s) == (None, "env", 1800)


def test_the_arguments_are_those_of_ray_train() -> None:
    signature = inspect.signature(TorchConfig)
    assert [(each.name, each.default) for each in signature.parameters.values()] == [
        ("backend", None),
        ("init_method", "env"),
        ("timeout_s", 1800),
    ]


@pytest.mark.parametrize("backend", ["gloo", "nccl", "cpu:gloo,cuda:nccl"])
def test_a_backend_is_kept_as_it_is_given(backend: Any) -> None:
    assert TorchConfig(backend).backend == backend


@pytest.mark.parametrize("backend", ["", "  ", 3, b"gloo", True])
def test_a_backend_that_is_no_text_or_blank_is_refused(backend: Any) -> None:
    with pytest.raises(UsageError, match=r"TorchConfig\.backend=.*gloo"):
        TorchConfig(backend=backend)


def test_the_init_method_may_be_tcp() -> None:
    assert TorchConfig(init_method="tcp").init_method == "tcp"


@pytest.mark.parametrize("init_method", ["", "ENV", "env://", "file", None])
def test_another_init_method_is_refused_and_the_two_are_named(init_method: Any) -> None:
    with pytest.raises(UsageError, match=r"TorchConfig\.init_method=.*'env', 'tcp'"):
        TorchConfig(init_method=init_method)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "30", None, True, timedelta(seconds=30)])
def test_a_timeout_that_is_no_number_of_seconds_above_zero_is_refused(timeout_s: Any) -> None:
    with pytest.raises(UsageError, match=r"TorchConfig\.timeout_s=.*seconds above 0"):
        TorchConfig(timeout_s=timeout_s)


def test_a_field_cannot_be_changed() -> None:
    config = TorchConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.backend = "gloo"  # type: ignore[misc]  # the mistake under test


def test_equal_fields_make_equal_and_hashable_configs() -> None:
    assert TorchConfig("gloo", timeout_s=60) == TorchConfig("gloo", "env", 60.0)
    assert len({TorchConfig("gloo"), TorchConfig("gloo"), TorchConfig("nccl")}) == 2


def test_it_pickles() -> None:
    config = TorchConfig("gloo", "tcp", 60)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (TorchConfig(), "TorchConfig()"),
        (TorchConfig(timeout_s=1800), "TorchConfig()"),
        (TorchConfig("gloo", "tcp", 60), "TorchConfig(backend='gloo', init_method='tcp', timeout_s=60.0)"),
    ],
)
def test_its_repr_reads_as_the_constructor(config: TorchConfig, text: str) -> None:
    assert repr(config) == text
    assert eval(repr(config)) == config


def test_neither_it_nor_the_integration_imports_torch() -> None:
    code = (
        "import sys, turnout.backends.torch, turnout.integrations.torch; "
        "print({'torch', 'ray', 'pyarrow', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")
