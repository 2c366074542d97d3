# Everything runs in .venv, made on first use. PYTHON picks the interpreter, 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
SPACE := search_spaces/quickstart.yaml
# One thread a process: tests and workers then share the cores instead of fighting for them.
export OMP_NUM_THREADS ?= 1

.PHONY: install quickstart test test-all check

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Stand-ins for AWS, Google Cloud and Kubernetes too, which the slow tests need.
.venv/installed-for-all-tests: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,cluster-tests]'
	touch $@

quickstart: install
	$(BIN)/triplu-ray sweep $(SPACE)
	$(BIN)/triplu-ray report quickstart

# In two processes, which the smallest machine has cores for; slow tests count on having it alone.
test: install
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test-all: .venv/installed-for-all-tests
	$(MAKE) test
	$(BIN)/python -m pytest -m slow

check: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

