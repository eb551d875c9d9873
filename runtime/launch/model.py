"""The model directory that a run starts from."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from runtime.files.unwritten import writing
from runtime.launch.model_refusals import model_refusals
from runtime.launch.preflight import Counted
from runtime.launch.prompt_lengths import count_prompts
from runtime.launch.stops import look_at_stops
from runtime.models.directory import ModelDirectoryProblem, UnsupportedModel
from runtime.models.smollm2 import ModelPackageMissing, smollm2_directory
from runtime.models.text import model_stop_tokens
from runtime.models.tiny import character_tokenizer, save_tiny_model, tiny_model, warm_up
from runtime.models.weights import model_without_memory
from runtime.settings import SMOLLM2, TINY, Settings
from runtime.tasks.data import load_task


def prepare(settings: Settings, directory: Path) -> tuple[Counted, Path | None]:
    """Look at the model, count the prompts, and then prepare the model; None in its place where the run is refused."""
    try:
        source = source_of(settings)
        tokenizer = tokenizer_of(source)
        looked_at = [
            Counted(refusals=model_refusals(settings, skeleton_of(settings, source))),
            look_at_stops(settings, tokenizer, model_stop_tokens(tokenizer, source)),
            count_prompts(settings, tokenizer),
        ]
    except (ModelPackageMissing, ModelDirectoryProblem, UnsupportedModel) as refused:
        return Counted(refusals=(str(refused),)), None
    refusals = tuple(refusal for looked in looked_at for refusal in looked.refusals)
    notices = tuple(notice for looked in looked_at for notice in looked.notices)
    return Counted(tuple(dict.fromkeys(refusals)), notices), None if refusals else prepare_model(settings, directory)


def source_of(settings: Settings) -> Path | None:
    """The directory that `policy.model_name` names; None for the tiny model, which is made for each run.

    Raises ModelPackageMissing.
    """
    name = settings.policy.model_name
    if name == TINY:
        return None
    return smollm2_directory() if name == SMOLLM2 else Path(name).resolve()


def skeleton_of(settings: Settings, source: Path | None) -> PreTrainedModel:
    """The model without its weights. Raises UnsupportedModel."""
    if source is None:
        return tiny_model(character_tokenizer(), settings.policy.tiny, settings.seed)
    return model_without_memory(source)


def tokenizer_of(source: Path | None) -> PreTrainedTokenizerBase:
    """The tokenizer of the model in a directory, or of the tiny one."""
    if source is None:
        return character_tokenizer()
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, local_files_only=True)
    return tokenizer


def prepare_model(settings: Settings, directory: Path) -> Path:
    """The directory of the model that `policy.model_name` names.

    The tiny one is made and warmed up in `directory`, aside and renamed, so that one which is there is whole, and used.
    Raises FileNotWritten.
    """
    source = source_of(settings)
    if source is not None:
        return source
    if not (directory / "config.json").exists():
        with writing(directory, "the run has not begun", also=(SafetensorError,)):
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
