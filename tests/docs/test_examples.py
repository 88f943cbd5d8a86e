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


def run(*command: str, cwd: Path = ROOT) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_digits_reads_held_out_digits() -> None:
    output = run("examples/digits.py")
    accuracy = re.search(r"accuracy\s+│ (\d\.\d+)", output)
    assert accuracy is not None, output
    assert float(accuracy[1]) > 0.95
    assert "Next:" in output


def test_resume_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    command = ("examples/resume.py", "--storage-path", str(tmp_path), "--seconds-per-step", "0", "--steps", "5")
    killed = subprocess.run([sys.executable, *command, "--kill-at", "3"], cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -9
    assert killed.stdout.splitlines()[-1] == "step 3: kill -9"
    output = run(*command)
    assert output.startswith("goes on from step 3\nstep 3: accuracy")
    assert "finished: {'step': 4" in output


def programs(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


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


def test_the_page_of_environment_variables_is_made_from_the_table() -> None:
    rows = [f"| `{each.name}` | {each.kind} | {each.default} | {each.meaning} |" for each in VARIABLES]
    page = (ROOT / "docs" / "environment.md").read_text()
    assert "\n".join(rows) in page


def test_every_link_of_a_document_to_a_file_leads_somewhere() -> None:
    for document in [*DOCUMENTS, "ARCHITECTURE.md", "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text()):
            assert (ROOT / document).parent.joinpath(target).exists(), f"{document}: {target}"
