"""A trained policy as a Hugging Face directory, like the one that training began with.

The weights are the trained ones, under the names and in the types of the source's files. Everything else is the
source's own: configuration, generation_config, tokenizer, chat template, licence.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel

from runtime.files.durable import sync_path, sync_tree
from runtime.models.directory import INDEX, ModelDirectoryProblem, weight_files
from runtime.models.errors import ModelNotSaved
from runtime.models.weights import as_in_files

_COPIED = (
    "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py", "additional_chat_templates/*.jinja", "LICENSE*",
    "NOTICE*",
)  # fmt: skip
"""The source's files beside the weights. Not its model card, which describes other weights."""
_SHARD = "5GB"
_FLOATING = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""As safetensors write them."""


def save_model_directory(
    target: Path, *, source: Path, model: PreTrainedModel, weights: Mapping[str, torch.Tensor]
) -> Path:
    """Write a trained policy as a model directory, in one go, in the place of what `target` held. Returns `target`.

    It is written aside, flushed and renamed: a writer that is killed leaves no directory that is half written.

    Args:
        target: The directory; its parent is made where it is not there.
        source: The directory that the model was loaded from.
        model: The model, loaded from `source`, for the names of its weights alone; it may be sharded.
        weights: All its weights (`named_weights`), whole and on the CPU.

    Raises:
        ModelNotSaved: The disk or the source does not allow it; what `target` held is there still.
    """
    aside, before = target.with_name(f".{target.name}.tmp"), target.with_name(f".{target.name}.old")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _finish_what_was_begun(target, aside, before)
        aside.mkdir()
        _copy_beside_weights(source, aside)
        _write_weights(_in_types_of(source, as_in_files(model, weights)), aside)
        sync_tree(aside)
        if target.exists():
            target.rename(before)
        aside.rename(target)
        sync_path(target.parent)
        _remove(before)
    except (OSError, SafetensorError, ModelDirectoryProblem) as error:
        shutil.rmtree(aside, ignore_errors=True)
        if before.exists() and not target.exists():
            before.rename(target)
        raise ModelNotSaved(
            f"the trained model could not be written to {target}: {error}; what was there before is unchanged. Free "
            f"the disk or correct its permissions, and see that {source} still holds the model that the run began with"
        ) from error
    return target


def _finish_what_was_begun(target: Path, aside: Path, before: Path) -> None:
    """What a killed writer left: the directory that was to be replaced is there again, if its place is empty."""
    _remove(aside)
    if target.exists():
        _remove(before)
    elif before.exists():
        before.rename(target)


def _remove(directory: Path) -> None:
    if directory.is_symlink():
        directory.unlink()
    elif directory.exists():
        shutil.rmtree(directory)


def _copy_beside_weights(source: Path, target: Path) -> None:
    for pattern in _COPIED:
        for path in sorted(source.glob(pattern)):
            if path.is_file() and not path.name.endswith(".index.json"):
                copy = target / path.relative_to(source)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)


def _write_weights(weights: Mapping[str, torch.Tensor], directory: Path) -> None:
    """One safetensors file, or shards and their index."""
    split = split_torch_state_dict_into_shards(dict(weights), max_shard_size=_SHARD)
    for name, keys in split.filename_to_tensors.items():
        save_file({key: weights[key].contiguous() for key in keys}, directory / name, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _in_types_of(source: Path, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in the types that `source` has them in; those that it lacks, in the type of most of its weights."""
    types: dict[str, torch.dtype] = {}
    for file_name in weight_files(source):
        with safe_open(source / file_name, framework="pt") as file:
            stored = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  # no mapping
        types.update((name, _FLOATING[kind]) for name, kind in stored.items() if kind in _FLOATING)
    usual = Counter(types.values()).most_common(1)[0][0]
    return {
        name: tensor.to(types.get(name, usual)) if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
