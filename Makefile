# Every target builds the virtual environment it needs and is quick once that stands.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test frameworks ray check chaos bench format clean

demo: $(READY)
	$(BIN)/python examples/digits.py
	$(BIN)/python examples/all_tracks.py

test: $(READY)
	$(BIN)/python -m pytest --ignore tests/crash --ignore tests/chaos --ignore tests/frameworks --ignore tests/compat -m "not on_ray"

# What trains with the frameworks of its users, and with Ray Train's names for them: each takes seconds to import, in every
# process. `make test` leaves it out.
frameworks: $(READY)
	$(BIN)/python -m pytest tests/frameworks tests/compat -m "not on_ray"

# The contract over Ray, and the tests of the Ray track but for test_ray.py: every run of theirs starts processes that
# import Ray. `make test` leaves them out.
ray: $(READY)
	$(BIN)/python -m pytest --ignore tests/crash --ignore tests/chaos -m on_ray

# What kills runs: the crash suite, and the chaos suite on a Ray cluster. `make test` leaves them out.
chaos: $(READY)
	$(BIN)/python -m pytest tests/crash tests/chaos

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/codespell

bench: $(READY)
	$(BIN)/python -m benchmarks

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-peer .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# A half-built environment is rebuilt: the marker is written last.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "turnout needs Python 3.11 or newer, and PYTHON=$(PYTHON) is %d.%d" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -q turnout  # for workers where Python is told to write no bytecode
	touch $(READY)
