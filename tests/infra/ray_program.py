"""A program on a Ray cluster of two nodes that say they have 8 GPUs each: what its tests look at, done once for all.

python -m tests.infra.ray_program REPORT

Every function below whose name begins with ``check_`` is one behaviour; REPORT says of each how it went.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import ray
from ray.util import placement_group_table

import turnout.infra as infra
from tests.distributed.ranks import wait_until
from turnout.errors import ResourceError, UsageError, WorkerGroupError
from turnout.infra import DeviceGroup, DeviceMesh, LazyCollect, on_group
from turnout.infra.collect import Reply
from turnout.infra.world import current_world

NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "SECRET_OF_THE_DRIVER",
)  # fmt: skip
GROUPS = [
    DeviceGroup("model", [0, 1, 2, 3], "cuda"),
    DeviceGroup("sampler", [4, 5], "cuda"),
    DeviceGroup("wide", [7, 8], "cuda"),
    DeviceGroup("rewards", 2),
]


@infra.remote_class()
class Worker:
    """What the checks call."""

    def __init__(self, device_mesh: DeviceMesh | None = None) -> None:
        self.mesh = device_mesh
        self.seen: list[Any] = []

    @infra.remote_function()
    def variables(self) -> dict[str, Any]:
        return {**{name: os.environ.get(name) for name in NAMES}, "node": ray.get_runtime_context().get_node_id()}

    @infra.remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, batch: Any) -> Any:
        return batch

    @infra.remote_function(dispatch="slice_dp")
    def parts(self, batch: Any) -> Any:
        return batch

    @infra.remote_function(collect="mean")
    def mean(self, batch: list[float]) -> dict[str, float]:
        return {"loss": sum(batch) / len(batch)}

    @infra.remote_function(collect="flatten", uneven="pad")
    def padded(self, batch: list[int]) -> list[int]:
        return [each * 10 for each in batch]

    @infra.remote_function(uneven="strict")
    def strict(self, batch: list[int]) -> list[int]:
        return batch

    @infra.remote_function(uneven="allow")
    def allowed(self, batch: list[int]) -> list[int]:
        return batch

    @infra.remote_function(execute="first", collect="first")
    def first(self) -> int:
        self.seen.append("first")
        return len(self.seen)

    @infra.remote_function(dispatch="all")
    def note(self, what: Any) -> None:
        self.seen.append(what)

    @infra.remote_function(lazy_collect=False)
    def take_seen(self) -> list[Any]:
        seen, self.seen = self.seen, []
        return seen

    @infra.remote_function()
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @infra.remote_function(sync=True, timeout=20)
    def sync_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @infra.remote_function(timeout=1)
    def hang(self) -> None:
        if os.environ["RANK"] == "1":
            time.sleep(4)

    @infra.remote_function(timeout=5)
    def hang_long(self) -> None:
        if os.environ["RANK"] == "1":
            time.sleep(8)

    @infra.remote_function(sync=True, timeout=0.5)
    def sync_hang(self) -> None:
        time.sleep(1.5)

    @infra.remote_function()
    def fail_on(self, rank: int, text: str) -> None:
        if os.environ["RANK"] != str(rank):
            time.sleep(3)
        raise RuntimeError(text)

    @infra.remote_function()
    def fail(self, text: str) -> None:
        raise RuntimeError(text)

    @infra.remote_function(dispatch="slice_dp", collect="flatten")
    def arrays(self, sizes: list[int]) -> np.ndarray[Any, Any]:
        return np.concatenate([np.full(size, float(os.environ["RANK"])) for size in sizes])

    @infra.remote_function(dispatch="slice_dp")
    def told_of(self, array: np.ndarray[Any, Any]) -> tuple[int, list[float]]:
        return len(array), sorted({float(each) for each in array[::1000]})

    @infra.remote_function()
    def outer(self) -> Any:
        return self.inner([1, 2])

    @infra.remote_function()
    def inner(self, batch: list[int]) -> list[int]:
        return batch

    @infra.remote_function(execute="peer")
    def served_by(self) -> int:
        return int(os.environ["RANK"])

    @infra.remote_function(dispatch="all")
    def ask_peers(self, other: Worker) -> list[int]:
        return other.served_by()()

    @infra.remote_function(execute="first", collect="first")
    def build_inside(self) -> list[Any]:
        inside = on_group(Worker, "sampler")()
        own = on_group(Worker, "rewards")()  # the worker's own group: here, as without one
        return [inside.rows([1, 2, 3, 4])(), Worker().rows([5])(), own.rows([6])(), own.seen]

    @infra.remote_function(execute="first")
    def tell(self, text: str) -> None:
        infra.notify(text)

    @infra.remote_function()
    def draws(self) -> list[float]:
        import random

        return [random.random(), float(np.random.rand())]

    @infra.remote_function(execute="first", collect="first")
    def is_deterministic(self) -> bool:
        import torch

        return torch.are_deterministic_algorithms_enabled()

    @infra.remote_function(sync=True)
    def summed_over_ranks(self) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return total.item()


@infra.remote_class(execute="first")
class Only:
    """On one worker."""

    @infra.remote_function(collect="first")
    def world_size(self) -> str | None:
        return os.environ.get("WORLD_SIZE")


@infra.remote_class(prefetch=2)
class Loader:
    """Batches of its rank, of which later ranks have fewer."""

    def __init__(self, num: int, fail_at: int | None = None, device_mesh: DeviceMesh | None = None) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.num = num - self.rank
        self.fail_at = fail_at

    def __len__(self) -> int:
        return self.num

    def __iter__(self) -> Iterator[str]:
        for number in range(self.num):
            if number == self.fail_at:
                raise OSError("no more files")
            yield f"{self.rank}:{number}"


@infra.remote_class()
class Holder:
    """Has an object of another group."""

    def __init__(self, other: Worker) -> None:
        self.other = other

    @infra.remote_function(execute="first", collect="first")
    def through(self, batch: list[int]) -> list[int]:
        rows: list[int] = self.other.rows(batch)()
        return rows


@infra.remote_class()
class Broken:
    """Cannot be built."""

    def __init__(self) -> None:
        raise FileNotFoundError("weights.pt")


class Objects:
    """What the checks share: an object on each group."""

    def __init__(self, messages: list[str], records: list[str]) -> None:
        self.messages = messages
        self.records = records
        self.model = on_group(Worker, "model")()
        self.sampler = on_group(Worker, "sampler")()
        self.wide = on_group(Worker, "wide")()
        self.rewards = on_group(Worker, "rewards")()


@contextlib.contextmanager
def raises(kind: type[BaseException], *told: str) -> Iterator[list[BaseException]]:
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"no {kind.__name__} was raised"
    for text in told:
        assert text in str(caught[0]), f"{text!r} is not in {caught[0]}"


def check_each_actor_sees_its_own_devices_alone_and_no_device_is_handed_out_twice(its: Objects) -> None:
    model, sampler, wide = its.model.variables()(), its.sampler.variables()(), its.wide.variables()()
    for group in (model, sampler, wide):
        assert [each["RANK"] for each in group] == [str(rank) for rank in range(len(group))]
        assert {each["WORLD_SIZE"] for each in group} == {str(len(group))}
        assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in group}) == 1
        assert {each["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] for each in group} == {"1"}
    devices = [(each["node"], each["CUDA_VISIBLE_DEVICES"]) for each in (*model, *sampler, *wide)]
    assert all(device.isdigit() for _, device in devices)
    assert len(set(devices)) == 8, devices
    assert len({each["MASTER_PORT"] for each in (model[0], sampler[0], wide[0])}) == 3
    assert len({each["node"] for each in (*model, *sampler)}) == 1, "two placement groups are on one node"


def check_a_group_that_spans_nodes_has_true_local_ranks(its: Objects) -> None:
    first, second = its.wide.variables()()
    assert first["node"] != second["node"]
    assert [(each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"], each["NODE_RANK"]) for each in (first, second)] == [
        ("0", "1", "0"), ("0", "1", "1"),
    ]  # fmt: skip
    on_one = its.model.variables()()
    assert [(each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"], each["NODE_RANK"]) for each in on_one] == [
        (str(rank), "4", "0") for rank in range(4)
    ]  # fmt: skip


def check_a_cpu_group_has_placement_groups_of_its_own_and_a_place_to_meet(its: Objects) -> None:
    for each in its.rewards.variables()():
        assert each["MASTER_ADDR"]
        assert each["MASTER_PORT"]
        assert each["WORLD_SIZE"] == "2"
    assert {"CPU": 2.0} in bundles()


def check_bundles_hold_the_devices_of_a_node_and_half_of_its_cpus(its: Objects) -> None:
    found = bundles()
    for bundle in ({"GPU": 4.0, "CPU": 8.0}, {"GPU": 4.0, "CPU": 8.0}, {"GPU": 1.0, "CPU": 8.0}, {"CPU": 2.0}):
        assert bundle in found, found
        found.remove(bundle)
    assert not found


def check_only_the_variables_that_are_needed_travel(its: Objects) -> None:
    assert {each["SECRET_OF_THE_DRIVER"] for each in its.model.variables()()} == {None}


def check_an_unknown_group_is_refused_and_without_one_the_object_is_here(its: Objects) -> None:
    with raises(UsageError, "'model', 'sampler', 'wide', 'rewards'"):
        on_group(Worker, "models")()
    here = Worker()
    assert here.rows([1])() == [1]
    assert isinstance(here.rows([1]), LazyCollect)
    assert here.mesh is not None


def check_the_same_class_is_built_twice_on_one_line(its: Objects) -> None:
    built = [on_group(Only, "rewards")() for _ in range(2)]
    assert [each.world_size()() for each in built] == ["1", "1"]


def check_rows_come_back_in_order_and_the_mean_is_true(its: Objects) -> None:
    assert its.model.rows(list(range(10)))() == list(range(10))
    assert its.model.rows(np.arange(10))().tolist() == list(range(10))
    assert its.model.mean([1.0, 2.0, 3.0, 4.0, 5.0])() == {"loss": 3.0}
    assert its.model.parts([1, 2, 3, 4, 5])() == [[1, 2], [3], [4], [5]]


def check_values_of_every_kind_come_as_they_are(its: Objects) -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    batch = [
        2**70, -1, 1.5, True, None, "text", b"bytes", (1, (2, 3)), {1, 2}, {"a": (1, 2), 3: 4}, {(1, 2): [3]},
        collections.OrderedDict(x=1), np.float32(2.5), range(3), deep,
    ]  # fmt: skip
    back = its.sampler.rows(batch)()
    assert back == batch
    assert [type(each) for each in back] == [type(each) for each in batch]


def check_uneven_in_its_four_forms(its: Objects) -> None:
    with raises(UsageError, "2 row(s) for 4"):
        its.model.rows([1, 2])
    with raises(UsageError, "cannot share evenly"):
        its.model.strict([1, 2, 3, 4, 5])
    assert its.model.padded([1, 2, 3, 4, 5])() == [10, 20, 30, 40, 50]
    assert its.model.allowed([1])() == [[1], [], [], []]


def check_execute_first_runs_on_worker_0_alone(its: Objects) -> None:
    its.model.take_seen()
    assert its.model.first()() == 1
    assert its.model.take_seen() == [["first"], [], [], []]


def check_inside_a_remote_function_another_one_is_the_plain_method(its: Objects) -> None:
    assert its.sampler.outer()() == [[1, 2]] * 2


def check_a_call_returns_at_once_and_two_groups_work_at_a_time(its: Objects) -> None:
    started = time.monotonic()
    results = [its.model.sleep(1.0), its.sampler.sleep(1.0)]
    assert time.monotonic() - started < 0.2
    assert not results[0].done()
    assert results[0]() == [None] * 4
    assert results[1]() == [None] * 2
    assert time.monotonic() - started < 1.7
    assert results[0].done()


def check_calls_run_in_their_order_on_every_actor_and_sync_waits_for_all(its: Objects) -> None:
    its.model.take_seen()
    slow = its.sampler.sleep(0.5)
    its.model.note(slow)  # has to wait for its argument, and those behind it for their turn
    for number in range(5):
        its.model.note(number)
    assert its.model.take_seen() == [[[None, None], 0, 1, 2, 3, 4]] * 4
    started = time.monotonic()
    assert its.model.sync_sleep(0.3).done()
    assert time.monotonic() - started >= 0.3


def check_a_result_goes_from_group_to_group_and_not_through_the_driver(its: Objects) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    samples = its.model.arrays([3_000_000] * 4)  # 24 MB each
    halves = its.sampler.told_of(samples.later)()
    assert halves == [(6_000_000, [0.0, 1.0]), (6_000_000, [2.0, 3.0])]
    assert its.sampler.told_of(samples.later)() == halves
    grown = process.memory_info().rss - before
    assert grown < 5_000_000, f"the driver has grown by {grown} bytes"
    replies = [Reply(*each) for each in ray.get(samples.pending.refs)]  # type: ignore[attr-defined]
    assert all(reply.value is None and reply.stored is not None for reply in replies)
    core: Any = ray._private.worker.global_worker.core_worker  # type: ignore[attr-defined]
    own = core.get_owner_address(ray.put(1))
    assert own not in [core.get_owner_address(reply.stored) for reply in replies]
    assert process.memory_info().rss - before < 5_000_000


def check_a_result_within_a_list_or_a_dict_is_its_value_too(its: Objects) -> None:
    samples = its.model.rows([1, 2, 3, 4])
    assert its.sampler.parts({"x": samples, "y": [5, 6, 7, 8]})() == [
        {"x": [1, 2], "y": [5, 6]}, {"x": [3, 4], "y": [7, 8]},
    ]  # fmt: skip
    assert its.sampler.parts([samples, 9])() == [[[1, 2, 3, 4]], [9]]
    assert its.sampler.note({"deep": [samples]}).result(20) == [None, None]
    assert its.sampler.take_seen()[0][-1] == {"deep": [[1, 2, 3, 4]]}
    with raises(UsageError, "batch has 2 row(s) for 4"):
        its.model.rows(its.sampler.rows([1, 2]))()
    with raises(UsageError, "batch['y'] (3 rows) and batch['x'] (4 rows)"):
        its.sampler.parts({"x": samples, "y": [1, 2, 3]})()
    assert its.model.parts(its.sampler.mean([1.0, 3.0]))() == [{"loss": 2.0}] * 4


def check_a_remote_loader_gives_all_its_batches_in_order_to_every_iterator(its: Objects) -> None:
    loader: Any = on_group(Loader, "sampler")(3)  # Any: of several workers, lists of theirs come
    assert len(loader) == 3
    assert list(loader) == [["0:0", "1:0"], ["0:1", "1:1"], ["0:2"]]
    first, second = iter(loader), iter(loader)
    assert [next(first), next(first)] == [["0:0", "1:0"], ["0:1", "1:1"]]
    assert next(second) == ["0:0", "1:0"]
    assert next(first) == ["0:2"]
    with raises(StopIteration):
        next(first)
    failing = on_group(Loader, "sampler")(3, fail_at=1)
    items = infra.iterate(failing, prefetch=0)
    next(items)
    with raises(OSError, "no more files", f"driver caller: tests/infra/ray_program.py:{line() + 1}]"):
        next(items)


def check_an_error_holds_the_driver_s_line_and_the_remote_traceback(its: Objects) -> None:
    result = its.model.fail("CUDA out of memory")
    at = line() - 1
    with raises(RuntimeError, f"[turnout driver caller: tests/infra/ray_program.py:{at}] CUDA out of memory") as caught:
        result()
    (error,) = caught
    assert isinstance(error, WorkerGroupError)
    assert "raise RuntimeError(text)" in str(error)
    assert "turnout/infra" not in str(error)
    assert "of group 'model' (pid " in str(error)


def check_the_first_failure_is_told_at_once_while_others_hang(its: Objects) -> None:
    started = time.monotonic()
    with raises(RuntimeError, "rank 3 of group 'model'", "it is rank 3"):
        its.model.fail_on(3, "it is rank 3")()
    assert time.monotonic() - started < 1.5


def check_an_error_of_the_call_that_was_to_give_an_argument_is_told_as_its_own(its: Objects) -> None:
    with raises(RuntimeError, "Worker.fail on rank", "of group 'rewards'"):
        its.sampler.note(its.rewards.fail("no reward"))()


def check_a_failure_that_nobody_reads_is_reported(its: Objects) -> None:
    pending = its.rewards.fail("nobody reads this").pending
    wait_until(pending.is_done, "the call to fail", 20)
    del pending
    current_world()._look_through_abandoned()
    assert any("nobody reads this" in record for record in its.records)


def check_the_notifier_is_told_once_of_a_call_that_fails_on_all_ranks(its: Objects) -> None:
    def messages() -> list[str]:  # and not those of checks before, which may come late
        return [each for each in its.messages if re.search("tell the notifier|Broken|from a worker", each)]

    result = its.model.fail("tell the notifier")
    wait_until(lambda: bool(messages()), "the notifier to be told of a call that nobody has read", 20)
    with raises(RuntimeError, "tell the notifier"):
        result()
    with raises(FileNotFoundError, "weights.pt"):
        on_group(Broken, "sampler")()
    its.rewards.tell("from a worker")()
    wait_until(lambda: len(messages()) >= 3, "three messages", 20)
    first, second, third = messages()
    assert first.startswith("program: Worker.fail has failed: RuntimeError\nrun: program\n")
    assert "group 'model'" in first
    assert "raised in Worker.fail on rank" in first
    assert second.startswith("program: Broken.__init__ has failed: FileNotFoundError")
    assert third == "from a worker"


def check_a_rank_that_hangs_is_named_with_its_stack_and_other_groups_go_on(its: Objects) -> None:
    for built in (its.model, its.wide):
        built.sleep(0)()  # what earlier checks have left running is over
    on_another_node = its.wide.hang_long
    for hang, timeout_s in ((its.model.hang, 1), (on_another_node, 5)):
        started = time.monotonic()
        with raises(
            TimeoutError, "Worker.hang", "rank 1 on node", "1 of ", "group '", f"timeout={timeout_s} s", "in hang"
        ) as caught:
            hang()()
        assert time.monotonic() - started < timeout_s + 1
        assert f"driver caller: tests/infra/ray_program.py:{line() - 2}]" in str(caught[0])
        assert its.sampler.rows([1, 2])() == [1, 2]
    with raises(TimeoutError, "timeout=0.5 s"):
        its.sampler.sync_hang()
    result = its.sampler.sleep(0.5)
    with raises(TimeoutError, "the timeout of result()"):
        result.result(timeout=0.01)
    assert result.result(timeout=20) == [None, None]


def check_peers_map_in_blocks_both_ways_and_are_all_from_the_driver(its: Objects) -> None:
    assert its.model.ask_peers(its.sampler)() == [[0], [0], [1], [1]]
    assert its.sampler.ask_peers(its.model)() == [[0, 1], [2, 3]]
    assert its.model.served_by()() == [0, 1, 2, 3]


def check_objects_are_built_from_inside_of_an_actor(its: Objects) -> None:
    assert its.rewards.build_inside()() == [[1, 2, 3, 4], [5], [6], []]


def check_an_object_of_one_group_is_given_to_the_constructor_of_another(its: Objects) -> None:
    assert on_group(Holder, "rewards")(its.model).through([1, 2, 3, 4, 5])() == [1, 2, 3, 4, 5]


def check_two_programs_on_one_cluster_do_not_meet(its: Objects) -> None:
    program = """
    import ray, turnout.infra as infra
    from turnout.infra import DeviceGroup
    @infra.remote_class()
    class Worker:
        @infra.remote_function()
        def rows(self, batch): return [len(batch)]
    ray.init(address="auto", log_to_driver=False)
    with infra.initialize("ray", groups=[DeviceGroup("rewards", 1)]):
        print(Worker(remote_group="rewards").rows([1, 2])())
    """
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env={**os.environ, "RAY_ADDRESS": address},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "[[2]]", done.stdout + done.stderr
    assert its.rewards.rows([1, 2])() == [1, 2]


def check_what_cannot_be_placed_is_refused_in_time_with_what_is_free(its: Objects) -> None:
    from turnout.infra.ray.resource_manager import ResourceManager

    started = time.monotonic()
    with raises(ResourceError, "9 GPU for node 0 of cuda", "has 8 GPU (0 free)", "8 GPU (7 free)"):
        ResourceManager([DeviceGroup("more", list(range(9)), "cuda")], 9, 8, 30.0)
    assert time.monotonic() - started < 3
    with raises(ResourceError, "placement_timeout_s=1", "8 GPU for node 0 of cuda"):
        ResourceManager([DeviceGroup("more", list(range(8)), "cuda")], 8, 8, 1.0)
    assert time.monotonic() - started < 6


def check_a_killed_worker_fails_the_call_and_is_named(its: Objects) -> None:
    hello = its.wide.__dict__["_turnout_handle"].workers.hellos[1]
    result = its.wide.sleep(30)
    os.kill(hello.pid, signal.SIGKILL)
    with raises(WorkerGroupError, f"rank 1 of group 'wide' (pid {hello.pid} on node ", "was killed"):
        result()


def check_after_shutdown_the_cluster_is_whole(its: Objects) -> None:
    unread = its.rewards.fail("kept until the end")
    wait_until(unread.done, "the call to fail", 20)
    hanging = its.sampler.sleep(600)
    infra.shutdown()
    assert any("kept until the end" in record for record in its.records)
    del unread, hanging
    assert not bundles()
    wait_until(
        lambda: all(ray.available_resources().get(name) == ray.cluster_resources()[name] for name in ("CPU", "GPU")),
        "all to be free again", 20,
    )  # fmt: skip


def check_several_devices_are_one_worker_s_and_seeds_and_collectives_work_there(its: Objects) -> None:
    groups = [
        DeviceGroup("pairs", [0, 1, 2, 3], "cuda", gpus_per_worker=2),
        DeviceGroup("named", [4], "cuda", visible_devices=["GPU-abc"]),
    ]
    settings: dict[str, Any] = {"groups": groups, "seed": 3, "seed_mode": "per_rank"}
    with infra.initialize("ray", **settings, full_determinism=True):
        pairs = on_group(Worker, "pairs")()
        devices = [each["CUDA_VISIBLE_DEVICES"] for each in pairs.variables()()]
        assert [len(each.split(",")) for each in devices] == [2, 2]
        assert len({device for each in devices for device in each.split(",")}) == 4
        assert on_group(Worker, "named")().variables()()[0]["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
        on_ray = pairs.draws()()
        assert pairs.is_deterministic()()
        assert pairs.summed_over_ranks()() == [2.0, 2.0]
    with infra.initialize("local", **settings, simulate=True):
        assert on_group(Worker, "pairs")().draws()() == on_ray


def bundles() -> list[dict[str, float]]:
    table = placement_group_table().values()
    return [bundle for each in table if each["state"] != "REMOVED" for bundle in each["bundles"].values()]


def line() -> int:
    return sys._getframe(1).f_lineno


CHECKS = [(name.removeprefix("check_"), check) for name, check in list(globals().items()) if name.startswith("check_")]


class Records(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def say(text: str) -> None:
    """For whoever runs the program by hand."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(report: str) -> None:
    records, messages = Records(), list[str]()
    logging.getLogger("turnout").addHandler(records)
    outcome: dict[str, str] = {}
    started = time.monotonic()
    with cluster():
        os.environ["SECRET_OF_THE_DRIVER"] = "hush"
        say(f"cluster after {time.monotonic() - started:.1f} s")
        infra.initialize("ray", nproc_per_node=4, groups=GROUPS, name="program", notifier=messages.append)
        its = Objects(messages, records.texts)
        say(f"objects after {time.monotonic() - started:.1f} s")
        for name, check in CHECKS:
            began = time.monotonic()
            try:
                check(its)
                outcome[name] = ""
            except Exception:
                outcome[name] = traceback.format_exc()
            say(f"{time.monotonic() - began:6.2f} s {name}{': FAILED' if outcome[name] else ''}")
            with open(report, "w", encoding="utf-8") as file:
                json.dump(outcome, file)
        infra.shutdown()


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Two nodes on this machine, which start no process before it is needed."""
    from ray.cluster_utils import Cluster

    os.environ.update({"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"})
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 16, "num_gpus": 8, "include_dashboard": False})
    made.add_node(num_cpus=16, num_gpus=8)
    ray.init(address=made.address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        made.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
