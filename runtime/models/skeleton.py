"""A model without its weights: for its names, shapes and configuration."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from runtime.models.errors import UnsupportedModel


def model_without_memory(directory: Path) -> PreTrainedModel:
    """The causal LM of a directory, on the meta device.

    Raises UnsupportedModel where transformers do not know it, and where its weights are quantised.
    """
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise UnsupportedModel(
            f"policy.model_name: transformers {transformers.__version__} make no causal LM of "
            f"{directory / 'config.json'} ({type(error).__name__}: {error}); name a directory that "
            "AutoModelForCausalLM.from_pretrained loads"
        ) from error
    if config.to_dict().get("quantization_config"):
        raise UnsupportedModel(
            f"policy.model_name: the weights of {directory} are quantised (quantization_config in its config.json), "
            "and only plain ones can be trained; dequantise the model and save it without quantization_config"
        )
    return model
