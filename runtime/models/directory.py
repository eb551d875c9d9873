"""A Hugging Face model directory, inspected without loading it: its problems, size and identity.

Imports neither torch nor transformers. Weights that do not fit the configuration are only found by loading them.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.files import refuse_not_plain


class UnsupportedModel(ValueError):
    """This model cannot be trained or sampled from correctly. Raised before anything runs."""


class ModelNotSaved(Exception):
    """A model directory could not be written."""


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_HEADER_MAX = 100_000_000
"""safetensors' own limit of a header's length. The first eight bytes of another file mostly claim far more."""


class ModelDirectoryProblem(Exception):
    """A problem of the directory, why it matters, and what to do."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The figures that determine memory."""

    parameters: int
    vocabulary: int
    layers: int
    key_value_width: int
    """Elements in the KV cache per token and layer, for keys or for values."""


TINY = ModelSize(parameters=120_000, vocabulary=100, layers=2, key_value_width=64)
"""Approximately the tiny model."""

SMOLLM2 = ModelSize(parameters=134_515_008, vocabulary=49_152, layers=30, key_value_width=192)
"""SmolLM2-135M, which is converted on first use."""


def inspect_model(directory: Path) -> ModelSize:
    """The size of the model in a directory. Raises ModelDirectoryProblem."""
    if not directory.is_dir():
        raise ModelDirectoryProblem(
            f"policy.model_name: {directory} is not a directory, and models are not downloaded; give a local directory "
            "of a Hugging Face causal LM, as save_pretrained writes it"
        )
    config = _read_json(directory / "config.json")
    parameters = sum(_parameters(directory / name) for name in weight_files(directory))
    if not any((directory / name).is_file() for name in TOKENIZERS):
        raise ModelDirectoryProblem(
            f"{directory} has no tokenizer (none of {', '.join(TOKENIZERS)}): prompts could not be encoded; save it "
            "there with tokenizer.save_pretrained"
        )
    return _size(config, parameters)


def end_tokens(directory: Path) -> set[int]:
    """All `eos_token_id` of generation_config.json, if it exists, and of config.json.

    Raises ModelDirectoryProblem if one of them is not an id.
    """
    ids: set[int] = set()
    for path in (directory / "generation_config.json", directory / "config.json"):
        if path.name == "config.json" or path.is_file():
            config = _read_json(path)
            found = config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
            listed = found if isinstance(found, list) else [] if found is None else [found]
            if any(isinstance(token, bool) or not isinstance(token, int) for token in listed):
                raise ModelDirectoryProblem(
                    f"{path}: eos_token_id is {found!r}; allowed: the id of a token, or a list of them"
                )
            ids.update(token for token in listed if token >= 0)
    return ids


def _read_json(path: Path) -> dict[str, Any]:
    try:
        refuse_not_plain(path)
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelDirectoryProblem(
            f"{path.parent} has no {path.name}: it is not a Hugging Face model directory; give one as save_pretrained "
            "writes it, with config.json, safetensors and a tokenizer"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelDirectoryProblem(f"{path} cannot be read as JSON ({error}); copy it again") from error
    if not isinstance(value, dict):
        raise ModelDirectoryProblem(f"{path} holds a {type(value).__name__}, not an object; copy it again")
    return value


def weight_files(directory: Path) -> list[str]:
    """The safetensors files of the weights. Raises ModelDirectoryProblem if none exists."""
    if (directory / INDEX).is_file():
        shards = _read_json(directory / INDEX).get("weight_map", {})
        return sorted(set(shards.values()))
    if (directory / SINGLE).is_file():
        return [SINGLE]
    pickles = sorted(path.name for path in directory.glob("*.bin"))
    found = f"it has {', '.join(pickles)}, which is a pickle and therefore not read; " if pickles else ""
    raise ModelDirectoryProblem(
        f"{directory} has no weights ({SINGLE}, or {INDEX} with its shards): {found}save the model there with "
        "model.save_pretrained"
    )


def _parameters(path: Path) -> int:
    """The number of elements in a safetensors file, from its header. The file must have the header's length."""
    try:
        refuse_not_plain(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _HEADER_MAX:
                raise ValueError("it does not begin with a safetensors header; a Git LFS pointer is a short text")
            header = json.loads(file.read(length))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
        if path.stat().st_size != end:
            raise ValueError(f"it has {path.stat().st_size:,} bytes, and by its header {end:,}")
        return sum(math.prod(tensor["shape"]) for tensor in tensors)
    except FileNotFoundError:
        raise ModelDirectoryProblem(f"{path} is missing, and {INDEX} names it; copy the directory again") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelDirectoryProblem(
            f"{path} is not a complete safetensors file: {error}; download or copy it again"
        ) from error


def _size(config: dict[str, Any], parameters: int) -> ModelSize:
    """From config.json's usual names. Figures that it lacks are 0, and estimates leave them out."""
    text = config.get("text_config", config)

    def number(*names: str) -> int:
        return next((value for name in names if isinstance(value := text.get(name), int)), 0)

    width, heads = number("hidden_size", "n_embd"), number("num_attention_heads", "n_head")
    head = number("head_dim") or (width // heads if heads else 0)
    return ModelSize(
        parameters=parameters,
        vocabulary=number("vocab_size"),
        layers=number("num_hidden_layers", "n_layer"),
        key_value_width=head * (number("num_key_value_heads") or heads),
    )


_INCIDENTAL = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache")
"""Keys of config.json that do not affect what the model computes."""
_ENDS_BYTES = 65_536


def identity_of_directory(directory: Path) -> dict[str, Any]:
    """The identity of a model, as plain JSON: its configuration, and hashes of tokenizer, template and weights.

    Of each weight file it hashes the header and both ends, since whole files may take minutes. Raises
    ModelDirectoryProblem.
    """
    config = _read_json(directory / "config.json")
    return {
        **{f"config.json's {key}": value for key, value in sorted(config.items()) if key not in _INCIDENTAL},
        "the hash of the tokenizer": _hash_of(_whole(directory / name) for name in TOKENIZERS),
        "the chat template": _hash_of([_chat_template(directory)]),
        "the hash of the weights": _hash_of(_header_and_ends(directory / name) for name in weight_files(directory)),
    }


def _hash_of(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


def _whole(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _chat_template(directory: Path) -> bytes:
    """The separate file that new versions write, or else the tokenizer's key."""
    path = directory / "tokenizer_config.json"
    template = _read_json(path).get("chat_template") if path.is_file() else None
    return _whole(directory / "chat_template.jinja") or json.dumps(template).encode("ascii")


def has_chat_template(directory: Path) -> bool:
    """Whether the tokenizer that is saved there has one. Raises ModelDirectoryProblem."""
    return _chat_template(directory) != b"null" or any(directory.glob("additional_chat_templates/*.jinja"))


def _header_and_ends(path: Path) -> bytes:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        beginning = file.read(length + _ENDS_BYTES)
        file.seek(max(0, path.stat().st_size - _ENDS_BYTES))
        return beginning + file.read()
