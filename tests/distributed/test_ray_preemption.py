"""Nodes that are taken away, on Ray: told to the ranks before, counted apart, and made good elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import program

_HEAD = """
    import json, logging, os, tempfile, threading, time
    import ray
    from ray.cluster_utils import Cluster
    from ray.core.generated import autoscaler_pb2
    import turnout
    from turnout import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, UserCallback
    from turnout.collective import barrier

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)

    def drain(node, in_s):
        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        deadline_ms = int((time.time() + in_s) * 1000)
        gcs = ray._private.worker.global_worker.gcs_client
        assert gcs.drain_node(node.node_id, reason, "the test takes it", deadline_ms)[0]
        return deadline_ms

    def note(text):
        with open("notes", "a") as file:
            file.write(text + "\\n")

    def notes():
        return open("notes").read().split("\\n")[:-1] if os.path.exists("notes") else []

    def train(config):
        context = turnout.get_context()
        rank, node = context.get_world_rank(), ray.get_runtime_context().get_node_id()
        checkpoint, step = turnout.get_checkpoint(), 0
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                step = json.load(open(os.path.join(folder, "step"))) + 1
        note(f"start {rank} {step} {node}")
        heard = False
        while True:
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "step"), "w") as file:
                    json.dump(step, file)
                turnout.report({"step": step}, Checkpoint(folder))
            info = turnout.get_preemption_info()
            if info is not None and not heard:
                heard = True
                note(f"heard {rank} {step} {info.deadline_ms} {info.preempted_node_ids} {info.preempted_ranks}")
            if checkpoint is not None:
                return step
            step += 1
            time.sleep(0.1)

    def until(condition):
        while not condition():
            time.sleep(0.05)

    class Told(UserCallback):
        def after_exception(self, run_context, worker_exceptions):
            for error in worker_exceptions.values():
                print("told", type(error).__name__, flush=True)

    results = []

    def begin(**failures):  # beside the main thread, on which alone a node can be added
        def fit():
            try:
                results.append(
                    DataParallelTrainer(
                        train,
                        scaling_config=ScalingConfig(2),
                        run_config=RunConfig(
                            name="run",
                            storage_path=".",
                            failure_config=FailureConfig(**failures),
                            callbacks=[Told()],
                        ),
                    ).fit()
                )
            except Exception as error:
                results.append(error)

        global training
        training = threading.Thread(target=fit)
        training.start()
        until(lambda: len(notes()) == 2)

    def heard():
        return [each for each in notes() if each.startswith("heard")]

    def end():
        ray.shutdown()
        cluster.shutdown()
"""


@pytest.mark.timeout(120)
def test_ranks_hear_of_a_node_that_goes_at_one_report_and_the_next_attempt_is_placed_elsewhere(tmp_path: Path) -> None:
    source = f"""{_HEAD}
    second = cluster.add_node(num_cpus=1)
    begin(max_failures=0, preemption_grace_s=2)
    deadline_ms = drain(second, 12)
    third = cluster.add_node(num_cpus=1)
    until(lambda: len(heard()) == 2)
    first, other = sorted(each.split(" ", 2) for each in heard())
    print("all alike", first[2] == other[2], flush=True)
    print("right", first[2].endswith(f" {{deadline_ms}} {{[second.node_id]}} [1]"), flush=True)
    training.join()
    result = results[0]
    print("result", result if isinstance(result, Exception) else result.metrics["step"] > 0, flush=True)
    print("over the deadline", time.time() * 1000 >= deadline_ms + 2000, flush=True)
    starts = [each.split()[1:] for each in notes() if each.startswith("start")][2:]
    print("steps", len({{step for _, step, _ in starts}}) == 1 and int(starts[0][1]) > 0, flush=True)
    print("elsewhere", sorted((rank, node == third.node_id) for rank, _, node in starts), flush=True)
    end()
    """
    with program(tmp_path, source) as driver:
        assert driver.wait(110) == 0, driver.text
    assert "all alike True\nright True" in driver.text
    assert "result True\nover the deadline True\nsteps True" in driver.text, driver.text
    assert "elsewhere [('0', False), ('1', True)]" in driver.text
    assert driver.text.count("told PreemptionError") == 2
    assert "with rank(s) 1: taken away by its owner, of which Ray was told before; it goes in" in driver.text


@pytest.mark.timeout(120)
def test_a_node_that_goes_before_its_deadline_is_a_preemption_too_and_has_its_own_limit(tmp_path: Path) -> None:
    source = f"""{_HEAD}
    second = cluster.add_node(num_cpus=1)
    begin(max_failures=5, max_preemption_failures=0)
    drain(second, 100)
    until(lambda: len(heard()) == 2)
    since = time.monotonic()
    cluster.remove_node(second, allow_graceful=False)
    training.join()
    print("within", time.monotonic() - since < 15, flush=True)
    print("error", type(results[0]).__name__, results[0], *results[0].__notes__, flush=True)
    end()
    """
    with program(tmp_path, source) as driver:
        assert driver.wait(110) == 0, driver.text
    assert "within True" in driver.text, driver.text
    assert "error PreemptionError run 'run': node " in driver.text
    assert "how the ranks of attempt 0 ended: rank 1: WorkerGroupError: rank 1 (pid " in driver.text
    assert "is lost with its node" in driver.text
