"""A checkpoint's policy as a Hugging Face directory with a card. Needs torch: only `evenstep export model` uses it."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from runtime.checkpoints.checkpoint import CheckpointTorn, step_of, verified_policy
from runtime.launch.model import source_of
from runtime.models.directory import ModelDirectoryProblem, inspect_model
from runtime.models.final import save_model_directory
from runtime.models.weights import mismatch, model_without_memory
from runtime.output.card import write_card
from runtime.output.directory import FINAL_MODEL, initial_model_of
from runtime.settings import Settings
from runtime.tasks.base import TaskError
from runtime.tasks.data import read_chat_template


def export_model(output: Path, checkpoint: Path, settings: Settings, target: Path, max_shard_size: str | None) -> Path:
    """Write a checkpoint's weights as the model directory `target`, with its card. Returns `target`.

    Args:
        output: The run's directory.
        checkpoint: One of its checkpoints, however many trainer ranks wrote it.
        settings: The run's.
        target: A new or an empty directory.
        max_shard_size: As in `save_model_directory`.

    Raises:
        CheckpointRefused: Its weights do not match their checksums.
        ModelDirectoryProblem: The model that the run started from, or `data.chat_template`, is gone or another one.
        ModelNotSaved: The disk does not allow it.
        UnsupportedModel: transformers does not know that model.
        FileNotWritten: Only the card is missing.
    """
    source = _base_of(output, settings)
    model = model_without_memory(source)
    try:
        weights = load_file(verified_policy(checkpoint) / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise CheckpointTorn(checkpoint, f"its weights cannot be read: {error}; name another --step") from error
    if reason := mismatch(model, weights):
        raise ModelDirectoryProblem(
            f"{source} is not the model that {checkpoint} was trained from ({reason}); put that model back there"
        )
    save_model_directory(
        target,
        source=source,
        model=model,
        weights=weights,
        max_shard_size=max_shard_size,
        chat_template=None if source == output / FINAL_MODEL else _chat_template(settings),
    )
    write_card(target, output, settings, step_of(checkpoint))
    return target


def _chat_template(settings: Settings) -> str | None:
    """What the run was trained with, if its last model is not there to have it. Raises ModelDirectoryProblem."""
    try:
        return read_chat_template(settings.data)
    except TaskError as error:
        raise ModelDirectoryProblem(
            f"{error}. Put the file back, or, if its path is relative, run the command in the directory in which the "
            "run was started"
        ) from error


def _base_of(output: Path, settings: Settings) -> Path:
    """A model directory with the run's tokenizer, configuration and types: its last model, or the one it began with."""
    tried = [output / FINAL_MODEL, source_of(settings) or initial_model_of(output)]
    problems = []
    for directory in tried:
        try:
            inspect_model(directory)
        except ModelDirectoryProblem as problem:
            problems.append(str(problem))
        else:
            return directory
    raise ModelDirectoryProblem(
        f"neither the run's last model nor the one that it began with is there, and the tokenizer and the "
        f"configuration come from them: {'; '.join(problems)}. Put one of them back, or, if policy.model_name is a "
        "relative path, run the command in the directory in which the run was started"
    )
