"""Every example runs to the result that it promises, and every program in the README runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from turnout.environment import VARIABLES

ROOT = Path(__file__).parents[2]


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*command: str, cwd: Path = ROOT, timeout_s: float = 55, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def digits_in_process() -> str:
    return run("examples/digits.py")


def progress(output: str) -> list[list[float]]:
    """Epoch, loss and accuracy of each line of the progress."""
    lines = re.findall(r"^ +(\d+) +(\S+) +(\S+) +\S+  checkpoint_\d+$", output, re.MULTILINE)
    return [[float(cell) for cell in line] for line in lines]


def test_digits_reads_held_out_digits(digits_in_process: str) -> None:
    assert [epoch for epoch, _, _ in progress(digits_in_process)] == list(range(16))
    assert progress(digits_in_process)[-1][2] > 0.95
    assert digits_in_process.count("Next:") == 1


def test_digits_comes_to_the_same_losses_under_torchrun(digits_in_process: str) -> None:
    output = run(*TORCHRUN, "examples/digits.py")
    assert progress(output) == [pytest.approx(line, rel=1e-3) for line in progress(digits_in_process)]
    assert output.count("Next:") == 1


def test_digits_comes_to_the_same_losses_on_forked_ranks(digits_in_process: str, tmp_path: Path) -> None:
    output = run(
        "examples/digits.py",
        TURNOUT_NUM_WORKERS="2",
        TURNOUT_CONTROLLER="process",
        TURNOUT_STORAGE_PATH=str(tmp_path),
    )
    assert progress(output) == [pytest.approx(line, rel=1e-3) for line in progress(digits_in_process)]
    assert output.count("Next:") == 1
    (checkpoint,) = tmp_path.glob("*/checkpoints/checkpoint_000015")
    assert sorted(path.name for path in checkpoint.iterdir()) == [".turnout.json", "state.pt"], "kept once"


def test_shards_of_two_ranks_are_loaded_by_one_and_by_three() -> None:
    lines = run("examples/fsdp_checkpoint.py").splitlines()
    saved, *loaded = (re.fullmatch(r"(\d) rank.*; epoch (\d), loss (\S+)", line) for line in lines)
    assert saved is not None
    assert saved.groups()[:2] == ("2", "1")
    for line, each, ranks in zip(lines[1:], loaded, ("1", "3"), strict=True):
        assert each is not None, line
        assert each.groups()[:2] == (ranks, "3")
        assert "loaded the same weights" in line
        assert float(each[3]) < float(saved[3])


def test_a_script_for_torchrun_runs_on_one_process() -> None:
    output = run("examples/under_torchrun.py")
    assert re.search(r"^rank 0: loss 0\.\d+; model.pt in memory$", output, re.MULTILINE), output


def test_a_script_for_torchrun_runs_on_two_processes(tmp_path: Path) -> None:
    output = run(*TORCHRUN, "examples/under_torchrun.py", TURNOUT_STORAGE_PATH=str(tmp_path))
    losses = re.findall(r"^rank \d: loss (\S+); model.pt stored$", output, re.MULTILINE)
    assert len(losses) == 2, output
    assert losses[0] == losses[1]
    assert len(list(tmp_path.glob("*/checkpoints/*/model.pt"))) == 4, "a checkpoint each epoch, equal files kept once"
    assert not list(tmp_path.glob("*/checkpoints/*/rank_*"))


def test_resume_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    command = ("examples/resume.py", "--storage-path", str(tmp_path), "--seconds-per-step", "0", "--steps", "5")
    killed = subprocess.run([sys.executable, *command, "--kill-at", "3"], cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -9
    assert killed.stdout.splitlines()[-1] == "step 3: kill -9"
    output = run(*command)
    assert output.startswith("goes on from step 3\nstep 3: accuracy")
    assert "finished: {'step': 4" in output


BOOSTERS = ("xgboost", "lightgbm")


def losses(output: str) -> list[float]:
    """Of Turnout, and of the framework alone."""
    found = re.search(r"^log loss: (\S+); of \w+ alone: (\S+)$", output, re.MULTILINE)
    assert found is not None, output
    assert re.search(r"^40 rounds, 9\d", output, re.MULTILINE), output
    return [float(each) for each in found.groups()]


@pytest.mark.parametrize("framework", BOOSTERS)
def test_a_booster_comes_to_the_loss_of_its_framework_alone(framework: str) -> None:
    ours, alone = losses(run(f"examples/{framework}_breast_cancer.py"))
    assert ours == alone


@pytest.mark.parametrize("framework", BOOSTERS)
def test_two_ranks_of_a_booster_come_to_the_loss_of_its_framework_alone(framework: str, tmp_path: Path) -> None:
    output = run(
        f"examples/{framework}_breast_cancer.py",
        TURNOUT_NUM_WORKERS="2",
        TURNOUT_CONTROLLER="process",
        TURNOUT_STORAGE_PATH=str(tmp_path),
    )
    ours, alone = losses(output)
    assert ours == pytest.approx(alone, abs=2e-5)  # sums in another order


@pytest.mark.timeout(180)  # three processes import the framework
@pytest.mark.parametrize("example", ["keras_digits", "jax_digits"])
def test_a_framework_comes_to_its_own_metrics_on_one_process_and_on_two(example: str, tmp_path: Path) -> None:
    program = f"examples/{example}.py"
    output = run(program, "--compare", timeout_s=80)
    output += run(
        program,
        timeout_s=80,
        TURNOUT_NUM_WORKERS="2",
        TURNOUT_CONTROLLER="process",
        TURNOUT_STORAGE_PATH=str(tmp_path),
    )
    found = re.findall(r"^(?:Turnout|\w+ alone): loss (\S+), accuracy (\S+)$", output, re.MULTILINE)
    losses, accuracies = zip(*((float(loss), float(accuracy)) for loss, accuracy in found), strict=True)
    assert losses == pytest.approx([losses[1]] * 3, rel=1e-3)
    assert accuracies == pytest.approx([accuracies[1]] * 3, abs=1 / 360)
    assert accuracies[1] > 0.93


@pytest.mark.timeout(180)  # four processes import the framework
@pytest.mark.parametrize(
    ("example", "tolerance"), [("lightning_digits", 0), ("transformers_text", 1), ("accelerate_digits", 0)]
)
def test_a_framework_comes_to_its_own_loss_in_process_and_on_two_ranks(example: str, tolerance: int) -> None:
    """To the digits that are shown; where Adam blows rounding up, to one unit of the last."""
    output = run(f"examples/{example}.py", timeout_s=170)
    found = re.findall(r"^(.+): loss (\d+\.\d{4})(.*)$", output, re.MULTILINE)
    names, losses, rest = zip(*found, strict=True)
    assert [name.split()[-1] for name in names] == ["alone", "process", "ranks"]
    assert losses[1] == losses[0]
    assert float(losses[2]) == pytest.approx(float(losses[0]), abs=tolerance * 1e-4 + 1e-9)
    if "accuracy" in rest[0]:
        accuracies = {re.findall(r"accuracy (\S+\d)", text)[0] for text in rest}
        assert len(accuracies) == 1
        assert float(accuracies.pop()) > 0.9


def programs(document: str) -> list[str]:
    """What runs alone; a block that begins with a file's name is one of several that belong together."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [block for block in blocks if not re.match(r"# \w+\.py\n", block)]


DOCUMENTS = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
PROGRAMS = [
    pytest.param(program, id=f"{document}-{number}")
    for document in DOCUMENTS
    for number, program in enumerate(programs(document))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_a_document_runs_as_it_stands(program: str, tmp_path: Path) -> None:
    name = "test_program.py" if "def test_" in program else "program.py"
    (tmp_path / name).write_text(program)
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", name) if name.startswith("test_") else (name,)
    run(*arguments, cwd=tmp_path)


def test_the_documents_have_programs() -> None:
    assert len(programs("README.md")) >= 2
    assert len(programs("docs/checkpoints.md")) >= 1
    assert len(programs("docs/ranks.md")) >= 1


def test_the_page_of_environment_variables_is_made_from_the_table() -> None:
    rows = [f"| `{each.name}` | {each.kind} | {each.default} | {each.meaning} |" for each in VARIABLES]
    page = (ROOT / "docs" / "environment.md").read_text()
    assert "\n".join(rows) in page


def test_every_link_of_a_document_to_a_file_leads_somewhere() -> None:
    for document in [*DOCUMENTS, "ARCHITECTURE.md", "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text()):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document}: {target}"
