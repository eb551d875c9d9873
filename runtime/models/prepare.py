"""The model directory that a run starts from."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from runtime.models.errors import UnsupportedModel
from runtime.models.refusals import model_refusals
from runtime.models.skeleton import model_without_memory
from runtime.models.smollm2 import ModelPackageMissing, smollm2_directory
from runtime.models.tiny import character_tokenizer, save_tiny_model, tiny_model
from runtime.models.warmup import warm_up
from runtime.preflight import Counted
from runtime.prompt_lengths import count_prompts
from runtime.settings import SMOLLM2, TINY, Settings
from runtime.tasks.load import load_task


def prepare(settings: Settings, directory: Path) -> tuple[Counted, Path | None]:
    """Look at the model, count the prompts, and then prepare the model; None in its place where the run is refused."""
    try:
        refusals = model_refusals(settings, skeleton_of(settings))
        counted = count_prompts(settings, tokenizer_of(settings))
    except (ModelPackageMissing, UnsupportedModel) as refused:
        return Counted(refusals=(str(refused),)), None
    looked_at = Counted((*refusals, *counted.refusals), counted.notices)
    return looked_at, None if looked_at.refusals else prepare_model(settings, directory)


def skeleton_of(settings: Settings) -> PreTrainedModel:
    """The model that `policy.model_name` names, without its weights. Raises UnsupportedModel, ModelPackageMissing."""
    name = settings.policy.model_name
    if name == TINY:
        return tiny_model(character_tokenizer(), settings.policy.tiny, settings.seed)
    return model_without_memory(smollm2_directory() if name == SMOLLM2 else Path(name))


def tokenizer_of(settings: Settings) -> PreTrainedTokenizerBase:
    """The tokenizer of the model that `policy.model_name` names."""
    name = settings.policy.model_name
    if name == TINY:
        return character_tokenizer()
    directory = smollm2_directory() if name == SMOLLM2 else Path(name)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    return tokenizer


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
