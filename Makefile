# Each target makes what it needs on a fresh machine: only Python 3.11 or newer, make and git have to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart demo benchmark checkpoints docs notebooks install test pytest test-slow test-gpu lint

quickstart: install
	$(BIN)/vanilla-transformer quickstart

demo: install
	$(BIN)/python demo/app.py $(if $(MODEL),--model $(MODEL))

benchmark: install
	$(BIN)/python scripts/benchmark.py $(OPTIONS)

checkpoints: install
	$(BIN)/python scripts/make_checkpoints.py $(if $(NAMES),--names $(NAMES))

docs: install
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: install
	$(BIN)/python scripts/documentation/notebooks.py

install: $(VENV)/installed

# PyTorch first and by its pinned version, so that no later requirement pulls in another build of it.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@

test: lint pytest

# By itself for other versions than the pinned ones: their types may differ, and nobody is helped if that ends the run.
pytest: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations=15

test-slow: install
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[clients]'
	$(BIN)/python -m pytest -m slow --durations=15

test-gpu: install
	CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES-0} $(BIN)/python -m pytest tests/gpu -m gpu -rs --durations=15

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy vanilla_transformer
