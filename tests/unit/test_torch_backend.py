"""`TorchBackend` on a group of one rank: what it sets up, what it refuses, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from turnout.backends.base import backend_for
from turnout.backends.torch import TorchBackend, TorchConfig, init_group
from turnout.config import BackendConfig
from turnout.errors import ControllerError, ResourceError, UsageError
from turnout.session.collective import SoloCollective
from turnout.session.events import RankInfo

ALONE = RankInfo()


@contextlib.contextmanager
def started(config: TorchConfig | None = None, ranks: RankInfo = ALONE) -> Iterator[TorchBackend]:
    backend = TorchBackend(config or TorchConfig())
    backend.start(ranks, SoloCollective())
    try:
        yield backend
    finally:
        backend.stop(None)


@pytest.fixture
def own_group() -> Iterator[Any]:
    """A process group of the user's own, made before the run."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with two CUDA devices; returns which were made the current one."""
    bound: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", bound.append)
    return bound


def num_open_files() -> int:
    gc.collect()
    return len(os.listdir("/dev/fd"))


# What is set up


def test_a_torch_config_has_this_backend() -> None:
    assert type(backend_for(TorchConfig())) is TorchBackend
    with pytest.raises(UsageError, match=r"torch_config=.*TorchConfig"):
        TorchBackend(BackendConfig())


def test_one_rank_is_a_group_of_one_that_collectives_work_on() -> None:
    with started():
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        value = torch.ones(2)
        dist.all_reduce(value)
        assert value.tolist() == [1.0, 1.0]
    assert not dist.is_initialized()


@pytest.mark.parametrize("backend", [None, "gloo", "GLOO", "cpu:gloo"])
def test_without_cuda_the_group_is_over_gloo(backend: str | None) -> None:
    with started(TorchConfig(backend)):
        assert str(dist.get_backend()).endswith("gloo")


def test_the_init_method_makes_no_difference() -> None:
    with started(TorchConfig(init_method="tcp")):
        assert dist.get_world_size() == 1


def test_the_address_of_the_store_stands_in_the_environment_while_the_group_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    with started():
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        assert address[0] == "127.0.0.1"
        socket.create_connection(address).close()
    assert os.environ["MASTER_ADDR"] == "10.0.0.1"
    assert "MASTER_PORT" not in os.environ
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_over_several_nodes_the_store_listens_on_the_address_that_the_controller_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    backend = TorchBackend(TorchConfig())
    with contextlib.closing(_Store(backend._store(RankInfo(0, 2, 0, 1, 0), SoloCollective()))):
        assert os.environ["MASTER_ADDR"] == "localhost"
        assert "GLOO_SOCKET_IFNAME" not in os.environ
        socket.create_connection(("localhost", int(os.environ["MASTER_PORT"]))).close()
    backend.stop(None)


class _Store:
    """Holds a store for as long as a block lasts."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def close(self) -> None:
        del self.store


def test_an_interface_that_the_user_chose_for_gloo_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with started():
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_ranks_of_one_node_share_its_cores_unless_the_user_has_said_how(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        crowded = RankInfo(0, 1, 0, 1000, 0)
        with started(ranks=crowded):
            assert torch.get_num_threads() == 1
            assert os.environ["OMP_NUM_THREADS"] == "1", "for libraries that would count the cores again"
        assert torch.get_num_threads() == 4
        assert "OMP_NUM_THREADS" not in os.environ
        with started():
            assert torch.get_num_threads() == 4
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
        with started(ranks=crowded):
            assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_each_rank_has_the_device_of_its_local_rank(two_devices: list[int]) -> None:
    init_group(TorchConfig("gloo"), RankInfo(0, 1, 1, 2, 0), dist.HashStore())(None)  # type: ignore[attr-defined]
    assert two_devices == [1]


def test_a_device_that_the_user_has_chosen_stays(two_devices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    init_group(TorchConfig("gloo"), ALONE, dist.HashStore())(None)  # type: ignore[attr-defined]
    assert two_devices == []


def test_more_ranks_than_devices_are_refused(two_devices: list[int]) -> None:
    with pytest.raises(ResourceError, match=r"rank 2 .*2 CUDA devices"):
        init_group(TorchConfig("gloo"), RankInfo(2, 3, 2, 3, 0), None)
    assert not dist.is_initialized()


# What is refused


def test_an_unknown_backend_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(
        UsageError, match=r"TorchConfig\.backend='gluu': this torch does not know 'gluu'; it has 'gloo'"
    ):
        TorchBackend(TorchConfig("gluu")).start(ALONE, SoloCollective())


@pytest.mark.skipif(dist.is_nccl_available(), reason="needs a torch without nccl")
@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_a_backend_that_torch_was_built_without_is_refused(backend: str) -> None:
    with pytest.raises(UsageError, match=r"TorchConfig\.backend=.*built without 'nccl'; it has 'gloo'"):
        TorchBackend(TorchConfig(backend)).start(ALONE, SoloCollective())


def test_a_start_that_fails_leaves_nothing() -> None:
    class Elsewhere(SoloCollective):
        def broadcast(self, tag: str, value: Any) -> Any:
            return "127.0.0.1", _closed_port()

    backend = TorchBackend(TorchConfig(timeout_s=0.1))
    with pytest.raises(ControllerError, match=r"rank 1 could not reach .* 127\.0\.0\.1:.*TorchConfig\.timeout_s"):
        backend.start(RankInfo(1, 2, 1, 2, 0), Elsewhere())
    assert not dist.is_initialized()
    assert "MASTER_ADDR" not in os.environ


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


# A group of the user's own


def test_a_group_that_was_there_before_is_used_and_left(own_group: Any) -> None:
    with started():
        assert dist.group.WORLD is own_group
        assert "MASTER_ADDR" not in os.environ
    assert dist.group.WORLD is own_group


def test_a_group_that_was_there_before_must_be_one_of_these_ranks(own_group: Any) -> None:
    with pytest.raises(UsageError, match="rank 0 of 1, and in the run it is rank 1 of 2"):
        TorchBackend(TorchConfig()).start(RankInfo(1, 2, 1, 2, 0), SoloCollective())


def test_a_group_that_the_function_puts_in_place_of_ours_is_left() -> None:
    with started():
        dist.destroy_process_group()
        # By the environment, as libraries do: so the port must be free again.
        dist.init_process_group("gloo", init_method="env://", rank=0, world_size=1, timeout=timedelta(seconds=20))
    assert dist.is_initialized()
    dist.destroy_process_group()


def test_a_group_that_the_function_destroyed_is_not_missed() -> None:
    with started():
        dist.destroy_process_group()
    assert not dist.is_initialized()


# What stays


def test_a_second_group_works_after_the_first_and_neither_leaves_a_file_or_a_thread() -> None:
    with started():
        pass
    files, threads = num_open_files(), threading.active_count()
    for _ in range(3):
        with started():
            dist.barrier()
    assert (num_open_files(), threading.active_count()) == (files, threads)


def test_stopping_does_not_raise_and_can_be_done_twice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with started() as backend:
        real = dist.destroy_process_group
        monkeypatch.setattr(dist, "destroy_process_group", _fail)
        backend.stop(ValueError("the user's"))
        assert "could not put back" in caplog.text
        assert "the group is stuck" in caplog.text
        assert "MASTER_ADDR" not in os.environ
        backend.stop(None)
        real()


def _fail() -> None:
    raise RuntimeError("the group is stuck")
