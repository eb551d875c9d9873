"""The torch engine for a model directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from runtime.generation.config import GenerationConfig, TorchEngineConfig
from runtime.generation.errors import RequestRefused
from runtime.generation.on_torch.engine import TorchEngine


def load_torch_engine(
    model_directory: Path, config: GenerationConfig, *, stop_token_ids: Sequence[int], version: int = 0
) -> TorchEngine:
    """The engine for a Hugging Face model directory; sets torch's number of threads for this process.

    Raises UnsupportedModel and RequestRefused as TorchEngine does, and transformers' OSError for a directory that
    is not a model.
    """
    if not isinstance(config.engine, TorchEngineConfig):
        raise RequestRefused(f"generation.engine.name is {config.engine.name!r}; load_torch_engine needs 'torch'")
    torch.set_num_threads(config.engine.threads)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    model = AutoModelForCausalLM.from_pretrained(
        model_directory, dtype=dtypes[config.engine.precision], local_files_only=True
    )
    module: torch.nn.Module = model  # transformers wraps `to` in a way that type checkers cannot follow
    module.to(config.engine.device)
    return TorchEngine(model, config, stop_token_ids=stop_token_ids, version=version)
