"""The example of every framework ends with the metric of that framework alone, in process and on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.running import run

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
