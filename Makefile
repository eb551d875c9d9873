# Everything runs in a virtual environment that these targets make themselves.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup train test lint bench docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,dev]'
	touch $(STAMP)

train: $(STAMP) ## train a tiny model for real on two CPU cores; TRAIN_ARGS go to `evenstep train`
	$(BIN)/evenstep train $(TRAIN_ARGS)

test: $(STAMP) lint ## all checks and tests; PYTEST_ARGS go to pytest
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMP) ## control cost per group, by sampler and groups in the buffer
	$(BIN)/python benchmarks/control_cost.py

docs: $(STAMP) ## refresh what the documents generate from the tables
	$(BIN)/evenstep diagram --write docs/machines.md

include vllm.mk

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
