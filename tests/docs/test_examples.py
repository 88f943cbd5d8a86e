"""Every example runs to the result that it promises, and every program in the README runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.running import ROOT, TORCHRUN, run
from turnout.environment import VARIABLES


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
