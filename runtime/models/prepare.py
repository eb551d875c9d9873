"""The model directory that a run starts from."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.models.smollm2 import smollm2_directory
from runtime.models.tiny import save_tiny_model
from runtime.models.warmup import warm_up
from runtime.settings import SMOLLM2, TINY, Settings
from runtime.tasks.load import load_task


def prepare_model(settings: Settings, directory: Path) -> Path:
    """The directory of the model that `policy.model_name` names; the tiny one is made in `directory`, and warmed up."""
    if settings.policy.model_name == SMOLLM2:
        return smollm2_directory()
    if settings.policy.model_name != TINY:
        return Path(settings.policy.model_name).resolve()
    save_tiny_model(directory, settings.policy.tiny, settings.seed)
    if settings.warmup.steps:
        model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        warm_up(model, tokenizer, load_task(settings.data, "training"), settings.warmup, seed=settings.seed)
        model.save_pretrained(directory)
    return directory.resolve()
