"""Clusters that a program joins, starts or spans, each with a driver program of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import program


@pytest.mark.usefixtures("cluster")
def test_a_program_that_has_not_joined_a_cluster_joins_the_one_of_ray_address(tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    source = """
    from turnout import DataParallelTrainer, RunConfig, ScalingConfig

    def train():
        import ray
        return ray.get_runtime_context().gcs_address

    values = DataParallelTrainer(
        train, scaling_config=ScalingConfig(1), run_config=RunConfig(storage_path=".")
    ).fit().return_values
    print("values", values, flush=True)
    """
    with program(tmp_path, source, env={"RAY_ADDRESS": address}) as driver:
        assert driver.wait(50) == 0, driver.text
    assert f"values ['{address}']" in driver.text


def test_ranks_on_two_nodes_know_their_nodes_and_share_a_group(tmp_path: Path) -> None:
    source = """
    import logging, os
    import ray
    from ray.cluster_utils import Cluster
    from turnout import RunConfig, ScalingConfig, get_context
    from turnout.torch import TorchTrainer

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    own = ray.get_runtime_context().get_node_id()

    def train():
        import torch
        import torch.distributed as dist
        total = torch.ones(1)
        dist.all_reduce(total)
        context = get_context()
        is_own = ray.get_runtime_context().get_node_id() == own
        return total.item(), context.get_node_rank(), context.get_local_rank(), context.get_local_world_size(), is_own

    scaling = ScalingConfig(2, placement_strategy="STRICT_SPREAD")
    result = TorchTrainer(train, scaling_config=scaling, run_config=RunConfig(storage_path=".")).fit()
    print("values", result.return_values, flush=True)
    ray.shutdown()
    cluster.shutdown()
    """
    with program(tmp_path, source) as driver:
        assert driver.wait(58) == 0, driver.text
    assert "values [(2.0, 0, 0, 1, True), (2.0, 1, 0, 1, False)]" in driver.text


@pytest.mark.timeout(120)
@pytest.mark.parametrize("end", ["kill", "suspend"])
def test_a_run_that_has_lost_a_node_goes_on_elsewhere_before_ray_itself_has_found_out(end: str, tmp_path: Path) -> None:
    source = f"""
    import logging, os, signal, time
    import psutil
    import ray
    from ray.cluster_utils import Cluster
    import turnout
    from turnout import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, get_context

    cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1, "include_dashboard": False}})
    first = cluster.add_node(num_cpus=1)
    spare = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)

    def train():
        node = ray.get_runtime_context().get_node_id()
        if not os.path.exists("lost") and get_context().get_world_rank() == 1:
            with open("lost", "w") as file:
                file.write(f"{{node}} {{time.time()}}")
            psutil.Process().parent().{end}()  # Ray's own process of the node
            os.kill(os.getpid(), signal.SIGKILL)
        turnout.report({{"at": time.time()}})
        return node

    result = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(storage_path=".", failure_config=FailureConfig(max_failures=1)),
    ).fit()
    lost, since = open("lost").read().split()
    took = result.metrics["at"] - float(since)
    print("took", round(took, 1), "elsewhere", lost not in result.return_values, "soon", took < 14, flush=True)
    ray.shutdown()
    cluster.shutdown()
    """
    with program(tmp_path, source) as driver:
        assert driver.wait(110) == 0, driver.text
    assert "elsewhere True soon True" in driver.text, driver.text


def test_ranks_see_the_gpus_of_their_node_and_those_without_see_none(tmp_path: Path) -> None:
    source = """
    import logging, os
    import ray
    from turnout import BackendConfig, DataParallelTrainer, RunConfig, ScalingConfig, get_context

    ray.init(
        address="local", num_cpus=2, num_gpus=4, include_dashboard=False, logging_level=logging.ERROR,
        log_to_driver=False,
    )

    def train():
        own = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        seen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        return seen, own == seen[get_context().get_local_rank():][:1]

    class Framework(BackendConfig):
        shows_all_gpus = True

    def values(backend_config=Framework(), **scaling):
        trainer = DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(2, controller="ray", **scaling),
            run_config=RunConfig(storage_path="."),
            backend_config=backend_config,
        )
        return trainer.fit().return_values

    print("one each", values(use_gpu=True), flush=True)
    shared = values(use_gpu=True, resources_per_worker={"GPU": 2})
    print("two each", [sorted(seen) for seen, _ in shared], flush=True)
    print("halves", [seen for seen, _ in values(use_gpu=True, resources_per_worker={"GPU": 0.5})], flush=True)
    print("without a framework", [seen for seen, _ in values(None, use_gpu=True)], flush=True)
    print("none", [seen for seen, _ in values()], flush=True)
    ray.shutdown()
    """
    with program(tmp_path, source) as driver:
        assert driver.wait(58) == 0, driver.text
    assert "one each [(['0', '1'], True), (['0', '1'], True)]" in driver.text
    assert "two each [['0', '1', '2', '3'], ['0', '1', '2', '3']]" in driver.text
    assert "halves [['0'], ['0']]" in driver.text
    assert "without a framework [['0'], ['1']]" in driver.text
    assert "none [[''], ['']]" in driver.text


def test_a_rank_that_ray_kills_as_its_node_runs_out_of_memory_is_told_so(tmp_path: Path) -> None:
    source = """
    import logging, time, traceback
    import psutil
    import ray
    from turnout import DataParallelTrainer, RunConfig, ScalingConfig, TrainingFailedError, get_context

    ALLOWED, STEP = 1_500 * 2**20, 100 * 2**20  # bytes
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + ALLOWED) / memory.total
    ray.init(
        address="local", include_dashboard=False, num_cpus=2, logging_level=logging.ERROR, log_to_driver=False,
        _system_config={"memory_usage_threshold": threshold, "memory_monitor_refresh_ms": 50},
    )

    def train():
        held = []
        while len(held) * STEP < 4 * ALLOWED:
            held.append(b"x" * STEP)
            time.sleep(0.05)  # the monitor's turn
        time.sleep(60)

    scaling = ScalingConfig(1, controller="ray")
    try:
        DataParallelTrainer(train, scaling_config=scaling, run_config=RunConfig(storage_path=".")).fit()
    except TrainingFailedError:
        traceback.print_exc()
    """
    with program(tmp_path, source) as driver:
        assert driver.wait(58) == 0, driver.text
    assert "WorkerGroupError: rank 0 (pid " in driver.text
    assert " was killed, as its node ran out of memory. Ray says: " in driver.text


def test_a_program_that_is_connected_by_the_ray_client_is_told_to_run_on_the_cluster(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    source = """
    from ray.util.client.ray_client_helpers import ray_start_client_server
    from turnout import DataParallelTrainer, ScalingConfig, UnsupportedError

    with ray_start_client_server():
        try:
            DataParallelTrainer(print, scaling_config=ScalingConfig(1, controller="ray")).fit()
        except UnsupportedError as error:
            print("refused:", error, flush=True)
    """
    with program(tmp_path, source) as driver:
        assert driver.wait(58) == 0, driver.text
    assert "refused: this program is connected to Ray through the Ray client (ray://)" in driver.text
    assert "ray job submit" in driver.text
