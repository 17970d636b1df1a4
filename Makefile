# Each target installs what it needs; a fresh machine only needs Python 3.11 or newer, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart demo benchmark figures checkpoints docs help notebooks install test pytest test-slow test-gpu lint

quickstart: $(VENV)/train
	$(BIN)/vanilla-transformer quickstart

demo: $(VENV)/demo
	$(BIN)/vanilla-transformer demo $(MODEL)

benchmark: install
	$(BIN)/python scripts/benchmark.py $(OPTIONS)

# The figures of the docs; `make figures NAMES="masks families"` draws only some of them.
figures: install
	$(BIN)/python scripts/figures.py $(NAMES)

checkpoints: install
	$(BIN)/python scripts/make_checkpoints.py $(if $(NAMES),--names $(NAMES))

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Store the help of all commands; run this after a change of options.
help: install
	$(BIN)/python scripts/documentation/command_help.py

# Run the notebooks and store their outputs; `make notebooks NAMES="look_inside"` runs only some of them.
notebooks: install
	$(BIN)/python scripts/documentation/notebooks.py $(NAMES)

# Install everything for developers. `quickstart` and `demo` install only what they need.
install: $(VENV)/dev

PIP_INSTALL := $(BIN)/python -m pip install -q -c constraints.txt

# Install PyTorch first and at its pinned version, so that no later requirement pulls in another build of it.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/train $(VENV)/demo: $(VENV)/%: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) -e '.[$*]'
	touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) -e '.[train,demo,serve,export,import,datastore]' --group dev
	touch $@

test: lint pytest

# Tests without lint: with other versions than the pinned ones, the types of libraries may differ.
pytest: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations=15

test-slow: install
	$(PIP_INSTALL) --group clients
	$(BIN)/python -m pytest -m slow --durations=15

test-gpu: install
	CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES-0} $(BIN)/python -m pytest tests/gpu -m gpu -rs --durations=15

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy vanilla_transformer
