"""The model directory that a run starts from."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from runtime.models.smollm2 import ModelPackageMissing, smollm2_directory
from runtime.models.tiny import character_tokenizer, save_tiny_model
from runtime.models.warmup import warm_up
from runtime.preflight import Counted
from runtime.prompt_lengths import count_prompts
from runtime.settings import SMOLLM2, TINY, Settings
from runtime.tasks.load import load_task


def prepare(settings: Settings, directory: Path) -> tuple[Counted, Path | None]:
    """Count the prompts, and then prepare the model; None in its place where the run is refused."""
    try:
        counted = count_prompts(settings, tokenizer_of(settings))
    except ModelPackageMissing as missing:
        return Counted(refusals=(str(missing),)), None
    return counted, None if counted.refusals else prepare_model(settings, directory)


def tokenizer_of(settings: Settings) -> PreTrainedTokenizerBase:
    """The tokenizer of the model that `policy.model_name` names."""
    name = settings.policy.model_name
    if name == TINY:
        return character_tokenizer()
    directory = smollm2_directory() if name == SMOLLM2 else Path(name)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    return tokenizer


def prepare_model(settings: Settings, directory: Path) -> Path:
    """The directory of the model that `policy.model_name` names.

    The tiny one is made and warmed up in `directory`, aside and renamed, so that one which is there is whole, and used.
    """
    if settings.policy.model_name == SMOLLM2:
        return smollm2_directory()
    if settings.policy.model_name != TINY:
        return Path(settings.policy.model_name).resolve()
    if not (directory / "config.json").exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as aside:
            made = Path(aside) / directory.name
            _make_tiny_model(settings, made)
            made.replace(directory)
    return directory.resolve()


def _make_tiny_model(settings: Settings, directory: Path) -> None:
    save_tiny_model(directory, settings.policy.tiny, settings.seed)
    if settings.warmup.steps:
        model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        warm_up(model, tokenizer, load_task(settings.data, "training"), settings.warmup, seed=settings.seed)
        model.save_pretrained(directory)
