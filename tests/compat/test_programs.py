"""Programs that were written for Ray Train run as they stand on Turnout, and print what is written down of them.

`compare.py` has run them on both, and `results.json` is what it has written down.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compat.compare import PROGRAMS, RESULTS, SWITCHED, UNDER_TORCHRUN, results_of

ROOT = Path(__file__).parents[2]
# The others take longer, for what the tests of the frameworks hold anyway.
ON_FORKED_RANKS = ["pytorch", "local", "checkpoints", "callbacks"]
ON_RAY = ["elastic", "data", "async_upload", "xgboost_trees"]
ON_RAY_TRAIN = ["collectives"]


def written_down(side: str, programs: list[str]) -> dict[str, Any]:
    known = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {each: known[each][side] for each in programs}


def test_programs_print_on_forked_ranks_what_is_written_down() -> None:
    found = results_of(SWITCHED, ON_FORKED_RANKS, TURNOUT_CONTROLLER="process")
    assert found == written_down("turnout", ON_FORKED_RANKS)


def test_the_local_program_prints_under_torchrun_what_is_written_down() -> None:
    assert results_of(SWITCHED, [UNDER_TORCHRUN]) == written_down("turnout", [UNDER_TORCHRUN])


@pytest.mark.on_ray
@pytest.mark.timeout(90)
def test_programs_print_on_ray_what_is_written_down() -> None:
    assert results_of(SWITCHED, ON_RAY) == written_down("turnout", ON_RAY)


@pytest.mark.on_ray
@pytest.mark.timeout(90)
def test_ray_train_prints_what_is_written_down_of_it() -> None:
    assert results_of((), ON_RAY_TRAIN) == written_down("ray.train", ON_RAY_TRAIN)


def test_the_page_says_of_each_program_whether_both_print_the_same() -> None:
    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    known = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert set(known) == set(PROGRAMS)
    for name, result in known.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert ("| the same |" in row) == (result["ray.train"] == result["turnout"])
