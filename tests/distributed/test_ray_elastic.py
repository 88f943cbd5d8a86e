"""Elastic runs on Ray: as many workers as there is room for, always from the newest commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import program

_HEAD = """
    import json, logging, os, tempfile, threading, time
    import ray
    from ray.cluster_utils import Cluster
    import turnout
    from turnout import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)

    def sizes():
        return [int(line) for line in open("sizes").read().split()] if os.path.exists("sizes") else []

    def train(config):
        size = turnout.get_context().get_world_size()
        checkpoint = turnout.get_checkpoint()
        step = 0
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                step = json.load(open(os.path.join(folder, "step"))) + 1
        if turnout.get_context().get_world_rank() == 0:
            with open("sizes", "a") as file:
                file.write(f"{size}\\n")
        while True:
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "step"), "w") as file:
                    json.dump(step, file)
                turnout.report({"step": step, "size": size}, Checkpoint(folder))
            if sizes()[len(config["until"]) - 1:] and sizes()[-1] == config["until"][-1]:
                return step
            step += 1
            time.sleep(0.2)

    def until(condition):
        while not condition():
            time.sleep(0.05)

    def fit(until, **failures):
        return DataParallelTrainer(
            train,
            train_loop_config={"until": until},
            scaling_config=ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=0.5),
            run_config=RunConfig(name="run", storage_path=".", failure_config=FailureConfig(**failures)),
        ).fit()

    results = []

    def begin(until, **failures):  # beside the main thread, on which alone a node can be added
        global training
        training = threading.Thread(target=lambda: results.append(fit(until, **failures)))
        training.start()

    def show():
        training.join()
        steps = results[0].metrics_dataframe["step"].tolist()
        print("sizes", sizes(), "steps", steps == sorted(set(steps)), flush=True)
        ray.shutdown()
        cluster.shutdown()
"""


@pytest.mark.timeout(120)
def test_a_run_begins_with_what_is_there_and_grows_when_a_node_joins(tmp_path: Path) -> None:
    source = f"""{_HEAD}
    begin([1, 2])
    until(lambda: sizes() == [1])
    cluster.add_node(num_cpus=1)
    show()
    """
    with program(tmp_path, source) as driver:
        assert driver.wait(110) == 0, driver.text
    assert "grows from 1 to 2 workers" in driver.text
    assert "sizes [1, 2] steps True" in driver.text


@pytest.mark.timeout(120)
def test_a_run_shrinks_when_a_node_is_lost_and_goes_on_from_its_newest_commit(tmp_path: Path) -> None:
    source = f"""{_HEAD}
    second = cluster.add_node(num_cpus=1)

    begin([2, 1], max_failures=1)
    until(lambda: sizes() == [2])
    cluster.remove_node(second, allow_graceful=False)
    show()
    """
    with program(tmp_path, source) as driver:
        assert driver.wait(110) == 0, driver.text
    assert "sizes [2, 1] steps True" in driver.text


@pytest.mark.usefixtures("cluster")
def test_a_run_that_has_room_for_all_is_as_any_other(tmp_path: Path) -> None:
    import turnout
    from tests.distributed.on_ray import fit
    from turnout import ScalingConfig

    def train() -> int:
        for step in range(3):
            turnout.report({"step": step})
        return turnout.get_context().get_world_size()

    assert fit(train, tmp_path, scaling_config=ScalingConfig(num_workers=(1, 2))).return_values == [2, 2]
