"""A test suite of Ray Train's users passes as it stands, on Turnout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.compat.test_switch import SWITCHED, run


@pytest.mark.on_ray
@pytest.mark.timeout(90)
def test_a_suite_that_imports_ray_train_at_its_top_passes(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("peer_suite.py"), tmp_path / "test_suite.py")
    tmp_path.joinpath("pytest.ini").write_text("[pytest]\nfilterwarnings = error::pytest.PytestWarning\n")
    output = run(*SWITCHED, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_suite.py", cwd=tmp_path, timeout_s=85)
    assert "5 passed" in output
