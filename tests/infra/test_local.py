"""Classes in this process: what a program without a cluster sees, and ranks that take turns."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import pytest

import turnout
import turnout.infra as infra
from tests.infra.programs import Loader, Model, Only
from turnout.errors import UsageError
from turnout.infra import DeviceGroup, DeviceMesh, LazyCollect, on_group

GROUPS = [DeviceGroup("model", 4, "cuda"), DeviceGroup("sampler", 2, "cuda"), DeviceGroup("rewards", 3)]


@pytest.fixture
def simulated() -> None:
    infra.initialize("local", simulate=True, groups=GROUPS)


def model(group: str = "model", **arguments: Any) -> Model:
    return on_group(Model, group)(**arguments)


def test_world_size_and_rank_of_the_environment_make_one_group_and_its_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    session = infra.initialize("local")
    assert [(group.name, group.ranks) for group in session.groups] == [("default", [0, 1, 2, 3])]
    assert session.device_mesh == DeviceMesh.from_sizes(dp_size=4)
    assert session.device_mesh.dp_rank == 2
    infra.shutdown()
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    assert infra.initialize("local").device_mesh.world_size == 1


def test_two_processes_with_one_seed_draw_the_same_from_python_numpy_and_torch() -> None:
    source = """
    import random, sys
    import turnout.infra as infra
    {early}
    infra.initialize("local", seed=7, full_determinism={deterministic})
    import numpy as np, torch
    print(random.random(), np.random.rand(), torch.rand(1).item(), torch.are_deterministic_algorithms_enabled())
    """
    outputs = []
    for early, deterministic in (("import torch", False), ("assert 'torch' not in sys.modules", True)):
        program = textwrap.dedent(source.format(early=early, deterministic=deterministic))
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=55, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.split())
    assert outputs[0][:3] == outputs[1][:3]
    assert [output[3] for output in outputs] == ["False", "True"]


def test_the_same_class_is_built_in_process_with_and_without_a_group() -> None:
    infra.initialize("local")
    for built in (Model(3), model(width=3), Model(3)):
        assert built.width == 3
        assert built.mesh == DeviceMesh.from_sizes(dp_size=1)
        assert built.rows([1, 2])() == [1, 2]


def test_a_class_whose_constructor_takes_a_mesh_alone_is_built_everywhere() -> None:
    @infra.remote_class(execute="all")
    class MyModel:
        def __init__(self, device_mesh: DeviceMesh) -> None:
            self.mesh = device_mesh

        @infra.remote_function(collect="first")
        def size(self) -> int:
            return self.mesh.world_size

    assert on_group(MyModel, "model")(DeviceMesh.from_sizes(dp_size=1)).size()() == 1
    infra.initialize("local", simulate=True, groups=GROUPS)
    assert on_group(MyModel, "model")(DeviceMesh.from_sizes(dp_size=4)).size()() == 4
    assert on_group(MyModel, "sampler")().size()() == 2  # type: ignore[call-arg]  # it is given one


def test_an_unknown_group_is_an_error_that_names_the_known_ones(simulated: None) -> None:
    with pytest.raises(
        UsageError, match=r"remote_group='models': there is no such group.*'model', 'sampler', 'rewards'"
    ):
        model("models")


def test_a_mesh_for_another_number_of_workers_is_refused_with_both_numbers(simulated: None) -> None:
    with pytest.raises(UsageError, match=r"DeviceMesh\(dp=2 x tp=4\) is for 8 worker\(s\), and group 'model' has 4"):
        model(device_mesh=DeviceMesh.from_sizes(dp_size=2, tp_size=4))
    with pytest.raises(UsageError, match=r"is for 2 worker\(s\), and this process has 1"):
        Model(device_mesh=DeviceMesh.from_sizes(dp_size=2))
    with pytest.raises(UsageError, match="numbered from 0 to 3"):
        model(device_mesh=DeviceMesh([4, 5, 6, 7], ("dp",)))


def test_a_program_for_groups_runs_in_one_process_with_a_mesh_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    infra.initialize("local")
    with caplog.at_level(logging.WARNING):
        built = model(device_mesh=DeviceMesh.from_sizes(dp_size=2, tp_size=2))
    assert built.mesh == DeviceMesh.from_sizes(dp_size=1)
    assert "DeviceMesh(dp=2 x tp=2) is for 4 workers; here it is built in 1 process(es)" in caplog.text


def test_execute_first_runs_on_worker_0_alone(simulated: None) -> None:
    built = model()
    assert built.note_first()() == 1
    assert built.count()() == [1, 0, 0, 0]
    assert on_group(Only, "model")().world_size()() == "1"


def test_results_of_meshes_come_back_in_the_order_of_the_input_once(simulated: None) -> None:
    for mesh in (
        DeviceMesh.from_sizes(dp_size=2, fsdp_size=2),
        DeviceMesh.from_sizes(dp_size=2, tp_size=2),
        DeviceMesh.from_sizes(pp_size=2, tp_size=2),
    ):
        assert model(device_mesh=mesh).rows(list(range(8)))() == list(range(8))
    assert model(device_mesh=DeviceMesh.from_sizes(dp_size=2, tp_size=2)).parts(list("abcd"))() == [
        ["a", "b"], ["a", "b"], ["c", "d"], ["c", "d"],
    ]  # fmt: skip
    assert model().loss([1.0, 2.0, 3.0, 4.0, 5.0])() == {"loss": 3.0}


def test_uneven_is_the_same_in_process_and_on_groups(simulated: None) -> None:
    for built in (Model(), model()):
        assert built.padded([1, 2, 3, 4, 5])() == [10, 20, 30, 40, 50]
        assert len(built.allowed([1])()) == (1 if built.__dict__.get("width") else 4)
        with pytest.raises(UsageError, match="has 0 row"):
            built.rows([])
    assert model().allowed([1])() == [[1], [], [], []]
    with pytest.raises(UsageError, match="cannot share evenly"):
        model().strict([1, 2, 3])
    with pytest.raises(UsageError, match=r"batch has 3 row\(s\) for 4 data ranks"):
        model().rows([1, 2, 3])


def test_inside_a_remote_function_another_one_is_the_plain_method(simulated: None) -> None:
    assert Model().outer()() == [[1, 2]]
    assert model().outer()() == [[1, 2]] * 4


def test_ranks_take_turns_with_their_own_environment_and_mesh(simulated: None) -> None:
    assert model().ranks()() == [(str(rank), "4", rank) for rank in range(4)]
    assert "RANK" not in os.environ


def test_peers_map_in_blocks_and_objects_are_built_from_inside_as_on_ray(simulated: None) -> None:
    four, two = model(), model("sampler")
    assert four.ask_peers(two)() == [[0], [0], [1], [1]]
    assert two.ask_peers(four)() == [[0, 1], [2, 3]]
    assert four.served_by()() == [0, 1, 2, 3]
    assert four.build_inside()() == [[1, 2, 3, 4], [5], 5]


@pytest.mark.parametrize(
    ("seed_mode", "num_different"), [("same", 1), ("per_rank", 4), ("per_data_rank", 2)]
)  # fmt: skip
def test_every_rank_has_random_numbers_of_its_own(seed_mode: str, num_different: int) -> None:
    infra.initialize("local", simulate=True, groups=GROUPS, seed=3, seed_mode=seed_mode)
    built = model(device_mesh=DeviceMesh.from_sizes(dp_size=2, tp_size=2))
    first, second = built.draws()(), built.draws()()
    assert len({tuple(each) for each in first}) == num_different
    assert first != second
    again = model(device_mesh=DeviceMesh.from_sizes(dp_size=2, tp_size=2))
    assert (again.draws()(), again.draws()()) == (first, second)


def test_what_is_imported_in_a_rank_s_turn_is_seeded_for_that_rank_and_then_for_the_program() -> None:
    source = """
    import sys
    import turnout.infra as infra

    @infra.remote_class()
    class Model:
        @infra.remote_function()
        def draw(self):
            import numpy
            return float(numpy.random.rand())

    groups = [infra.DeviceGroup("model", 3)]
    with infra.initialize("local", simulate=True, groups=groups, seed=3, seed_mode="per_rank"):
        assert "numpy" not in sys.modules
        drawn = Model(remote_group="model").draw()()
    import numpy
    own = float(numpy.random.rand())
    expected = []
    for seed in (3, 4, 5):
        numpy.random.seed(seed)
        expected.append(float(numpy.random.rand()))
    assert drawn == expected, (drawn, expected)
    assert own == expected[0]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_result_is_iterated_measured_indexed_and_awaited_like_its_value(simulated: None) -> None:
    async def awaited(result: LazyCollect[Any]) -> Any:
        return await result

    for built in (Model(), model()):
        result = built.rows([1, 2, 3, 4])
        assert isinstance(result, LazyCollect)
        assert result.done()
        assert (list(result), len(result), result[1], bool(result)) == ([1, 2, 3, 4], 4, 2, True)
        assert asyncio.run(awaited(result)) == [1, 2, 3, 4]
        assert result.result(timeout=1) == result() == [1, 2, 3, 4]
        assert built.nothing()()[0] is None
        assert "LazyCollect of Model.rows at tests/infra/test_local.py" in repr(result)


def test_lazy_collect_false_gives_the_value_itself() -> None:
    assert Model(5).eager() == 5
    assert Model(5).rows([1], lazy_collect=False) == [1]  # type: ignore[call-arg, comparison-overlap]

    @infra.remote_class(lazy_collect=False)
    class Eager:
        @infra.remote_function(collect="sum")
        def one(self) -> int:
            return 1

    assert Eager().one() == 1  # type: ignore[comparison-overlap]  # which the decorator of the class has changed
    infra.initialize("local", lazy_collect=False)
    assert Model().rows([1]) == [1]  # type: ignore[comparison-overlap]


def test_a_result_that_is_passed_on_is_its_value(simulated: None) -> None:
    sampler, trained = model("sampler"), model(device_mesh=DeviceMesh.from_sizes(dp_size=2, tp_size=2))
    samples = sampler.rows([1, 2, 3, 4])
    assert trained.parts(samples)() == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert trained.parts({"x": samples})()[3] == {"x": [3, 4]}
    assert trained.parts([samples, samples])()[0] == [[1, 2, 3, 4]]
    assert Model().rows(samples)() == [1, 2, 3, 4]


def test_what_is_wrong_with_a_result_that_is_passed_on_is_told_when_the_next_one_is_read(simulated: None) -> None:
    for failing, built in ((Model(), Model()), (model("sampler"), model())):
        passed = built.rows(failing.fail("no samples"))
        with pytest.raises(RuntimeError, match=r"driver caller: tests/infra/test_local.py:\d+\] no samples"):
            passed()
    few = model().rows(model("sampler").rows([1, 2]))
    with pytest.raises(UsageError, match=r"batch has 2 row\(s\) for 4 data ranks"):
        few()


def test_only_arguments_that_the_annotation_marks_are_cut(simulated: None) -> None:
    @infra.remote_class()
    class Marked:
        @infra.remote_function()
        def lengths(self, batch: Annotated[list[int], "slice_dp"], modules: list[str]) -> tuple[int, int]:
            return len(batch), len(modules)

    assert on_group(Marked, "model")().lengths([1, 2, 3, 4], ["q", "v"])() == [(1, 2)] * 4


def test_a_proxy_has_its_remote_functions_and_nothing_else(simulated: None) -> None:
    built = model()
    assert isinstance(built, Model)
    with pytest.raises(AttributeError, match="it has their remote functions: allowed, ask_peers"):
        built.width  # noqa: B018
    with pytest.raises(AttributeError, match="cannot be set here"):
        built.width = 3
    with pytest.raises(AttributeError, match="no __call__"):
        built.__call__  # type: ignore[operator]  # noqa: B018
    with pytest.raises(TypeError, match=r"Model.rows\(\): missing a required argument: 'batch'"):
        built.rows()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Model\(\): got an unexpected keyword argument 'depth'"):
        model(depth=3)


def test_classes_that_cannot_be_remote_are_refused(simulated: None) -> None:
    class Slotted:
        __slots__ = ("x",)

    with pytest.raises(UsageError, match="its objects have no __dict__"):
        infra.remote_class()(Slotted)

    @infra.remote_class()
    class Numbers(list[int]):
        pass

    assert Numbers([1]) == [1]
    with pytest.raises(UsageError, match=r"Numbers cannot be built on group 'model'.*Hold what it derives from"):
        Numbers([1], remote_group="model")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="a generator or a coroutine cannot travel"):

        @infra.remote_function()
        def items(self: Any) -> Any:
            yield 1


def test_a_class_that_derives_from_a_remote_one_is_one_with_a_constructor_of_its_own(simulated: None) -> None:
    class Derived(Model):
        def __init__(self, depth: int, device_mesh: DeviceMesh | None = None) -> None:
            super().__init__(width=depth * 2, device_mesh=device_mesh)

    decorated = infra.remote_class()(Derived)
    assert on_group(decorated, "sampler")(3).eager() == 6
    assert Derived(4).width == 8


def test_an_error_has_its_own_class_and_the_caller_s_line_in_its_text(simulated: None) -> None:
    for built, group in ((Model(), None), (model(), "model")):
        line = sys._getframe().f_lineno + 1
        result = built.fail("CUDA out of memory")
        with pytest.raises(RuntimeError) as caught:
            result()
        assert str(caught.value) == f"[turnout driver caller: tests/infra/test_local.py:{line}] CUDA out of memory"
        assert isinstance(caught.value, turnout.WorkerGroupError)
        assert sorted(caught.value.worker_failures) == ([0] if group is None else [0, 1, 2, 3])
        assert caught.traceback[-1].name == "fail"
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), type(again).__name__) == (str(caught.value), "RuntimeError")
        with pytest.raises(RuntimeError):
            result()


def test_a_failure_that_nobody_reads_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    Model().fail("lost")
    assert "nobody has read the result of a call that has failed: [turnout driver caller: " in caplog.text
    assert "lost" in caplog.text
    caplog.clear()
    infra.initialize("local")
    kept = Model().fail("kept until the end")
    infra.shutdown()
    assert "kept until the end" in caplog.text
    del kept


def test_a_program_without_logging_is_told_on_its_console() -> None:
    source = """
    import turnout.infra as infra

    @infra.remote_class()
    class Model:
        def __init__(self, device_mesh=None): pass
        @infra.remote_function()
        def fail(self): raise ValueError("nobody saw me")

    infra.initialize("local")
    model = Model(infra.DeviceMesh.from_sizes(dp_size=2), remote_group="model")
    kept = model.fail()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0
    warning, error = done.stderr.splitlines()
    assert warning.startswith(
        "WARNING turnout: Model(): DeviceMesh(dp=2) is for 2 workers; here it is built in 1 process"
    )
    assert error.startswith(
        "ERROR turnout: nobody has read the result of a call that has failed: [turnout driver caller"
    )
    assert error.endswith("nobody saw me")


def test_iterating_over_a_group_gives_every_worker_s_items_and_loses_none(simulated: None) -> None:
    one: Any = on_group(Loader, "model")(3)  # Any: of several workers, lists of theirs come
    assert len(one) == 3
    assert list(one) == [["0:0", "1:0", "2:0"], ["0:1", "1:1"], ["0:2"]]
    first, second = iter(one), iter(one)
    assert next(first) == next(second)
    failing = on_group(Loader, "sampler")(3, fail_at=1)
    items = iter(failing)
    next(items)
    with pytest.raises(OSError, match=r"driver caller: tests/infra/test_local.py:\d+\] no more files"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)
    assert list(infra.iterate(Loader(2))) == ["0:0", "0:1"]


def test_a_plan_shows_who_would_get_which_rows_and_runs_nothing(simulated: None) -> None:
    built = model(device_mesh=DeviceMesh.from_sizes(dp_size=2, tp_size=2))
    plan = infra.plan(built, "padded", [1, 2, 3])
    assert [(each.data_rank, each.rows, each.copies, each.counts) for each in plan.ranks] == [
        (0, (0, 2), (), True), (0, (0, 2), (), False), (1, (2, 3), (2,), True), (1, (2, 3), (2,), False),
    ]  # fmt: skip
    text = str(built.plan("padded", [1, 2, 3]))  # type: ignore[attr-defined]  # which the decorator has added
    assert "rank 3 (data rank 1): rows 2 to 2, and copies of row 2; its result is left out" in text
    assert "collect: flatten: the rows, in the order of the input" in text
    assert built.seen()() == 0
    with pytest.raises(UsageError, match="Model has no remote function 'train'"):
        infra.plan(built, "train")


def test_initialising_twice_is_an_error_unless_the_arguments_are_the_same() -> None:
    with infra.initialize("local", seed=3):
        infra.initialize("local", seed=3)
        with pytest.raises(UsageError, match=r"called before with other arguments \(seed\)"):
            infra.initialize("local", seed=4)
    infra.initialize("local", seed=4)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"mode": "slurm"}, "takes one of 'local', 'ray'"),
        ({"mode": "ray"}, "needs groups"),
        ({"simulate": True}, "needs groups"),
        ({"mode": "ray", "simulate": True}, "simulate has the groups in this process"),
        ({"seed": 2**32}, "takes a whole number from 0 to"),
        ({"seed_mode": "random"}, "takes one of 'same'"),
        ({"groups": [DeviceGroup("a", 1, "tpu")]}, "there are the platforms cuda, npu, cpu"),
        ({"notifier": "url"}, "takes a callable of one string"),
        ({"global_device_mesh": DeviceMesh.from_sizes(dp_size=2)}, "is for 2 process"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        infra.initialize(**arguments)


def test_under_torchrun_every_process_runs_its_part_and_can_gather(tmp_path: Path) -> None:
    source = """
    import os
    import torch.distributed as dist
    import turnout.infra as infra

    @infra.remote_class()
    class Model:
        @infra.remote_function(dispatch="slice_dp", collect="flatten")
        def rows(self, batch): return batch
        @infra.remote_function(collect="mean")
        def mean(self, batch): return sum(batch) / len(batch)
        @infra.remote_function(execute="first", collect="first")
        def rank(self): return int(os.environ["RANK"])

    rank = int(os.environ["RANK"])
    with infra.initialize("local"):
        model = Model()
        assert model.rows([1, 2, 3])() == [[1, 2], [3]][rank]
        assert model.rank()() == [0, None][rank]
        try:
            model.rows([1, 2, 3])(all_ranks=True)
        except ValueError as error:
            assert "init_process_group" in str(error)
        else:
            raise AssertionError
        dist.init_process_group("gloo")
        assert model.rows([1, 2, 3], all_ranks=True)() == [1, 2, 3]
        assert model.mean([1, 2, 3])(all_ranks=True) == 2.0
        assert model.rank(all_ranks=True)() == 0
        mesh = infra.DeviceMesh.from_sizes(dp_size=2)
        assert dist.get_process_group_ranks(mesh.create_process_group(["dp"])) == [0, 1]
        assert mesh.to_torch_device_mesh().get_local_rank("dp") == rank
    with infra.initialize("local", local_args="mine"):
        model = Model()
        assert model.rows([rank])() == [rank]
        assert model.rows([rank], all_ranks=True)() == [0, 1]
    dist.destroy_process_group()
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(turnout.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=58, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
