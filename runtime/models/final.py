"""Write a trained policy as a Hugging Face directory, like the one that training started from.

The weights are the trained ones, under the names and in the types of the source's files. All other files are copies of
the source's: configuration, generation_config, tokenizer, chat template, licence.
"""

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

from runtime.files import give_usual_mode, sync_path, sync_tree
from runtime.models.directory import INDEX, ModelDirectoryProblem, ModelNotSaved, weight_files
from runtime.models.weights import as_in_files

_COPIED = (
    "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py", "additional_chat_templates/*.jinja", "LICENSE*",
    "NOTICE*",
)  # fmt: skip
"""The source's files other than weights. Without its model card, which describes other weights."""
_SHARD = "50GB"
"""As `save_pretrained` of transformers has it."""
_FLOATING = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""safetensors' names of types."""


def save_model_directory(
    target: Path,
    *,
    source: Path,
    model: PreTrainedModel,
    weights: Mapping[str, torch.Tensor],
    max_shard_size: str | None = None,
    chat_template: str | None = None,
) -> Path:
    """Write a trained policy as a model directory, replacing the contents of `target`. Returns `target`.

    The directory is written aside, flushed and renamed, so that a killed writer leaves no half-written one.

    source: the directory that the model was loaded from.
    model: for the names of its weights alone; it may be sharded.
    weights: all `named_weights`, whole and on the CPU.
    max_shard_size: of a file of weights, such as "5GB"; None: transformers' default, 50 GB.
    chat_template: the Jinja that the policy was trained with, in place of the source's; None: that one.
    Raises ModelNotSaved if the disk or the source does not allow it; `target` then has its old contents.
    """
    aside, before = target.with_name(f".{target.name}.tmp"), target.with_name(f".{target.name}.old")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _recover(target, aside, before)
        aside.mkdir()
        _copy_other_files(source, aside)
        if chat_template is not None:
            _replace_chat_template(aside, chat_template)
        _write_weights(_in_types_of(source, as_in_files(model, weights)), aside, max_shard_size or _SHARD)
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
            f"the trained model could not be written to {target}: {error}; its old contents are unchanged. Free the "
            f"disk or correct its permissions, and check that {source} still has the model that the run started from"
        ) from error
    return target


def _recover(target: Path, aside: Path, before: Path) -> None:
    """Clean up after a killed writer, and restore the old directory if `target` is missing."""
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


def _copy_other_files(source: Path, target: Path) -> None:
    for pattern in _COPIED:
        for path in sorted(source.glob(pattern)):
            if path.is_file() and not path.name.endswith(".index.json"):
                copy = target / path.relative_to(source)
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)


def _replace_chat_template(directory: Path, template: str) -> None:
    """As a tokenizer's `save_pretrained` writes it. Named templates go: transformers takes `tool_use` before others."""
    shutil.rmtree(directory / "additional_chat_templates", ignore_errors=True)
    (directory / "chat_template.json").unlink(missing_ok=True)
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    path = directory / "tokenizer_config.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if known.pop("chat_template", None) is not None:
        path.write_text(json.dumps(known, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_weights(weights: Mapping[str, torch.Tensor], directory: Path, max_shard_size: str) -> None:
    """One safetensors file, or shards and their index."""
    split = split_torch_state_dict_into_shards(dict(weights), max_shard_size=max_shard_size)
    for name, keys in split.filename_to_tensors.items():
        save_file({key: weights[key].contiguous() for key in keys}, directory / name, metadata={"format": "pt"})
        give_usual_mode(directory / name)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _in_types_of(source: Path, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in the types that `source` stores them in; others in the type of most of its weights."""
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
