"""A model directory in Hugging Face's layout, looked at before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase


class ModelDirectoryError(ValueError):
    """A directory does not hold a causal language model with its tokenizer."""


def check_model_directory(directory: Path) -> None:
    """Look for configuration, weights and tokenizer, without loading any of them (milliseconds).

    Raises ModelDirectoryError, which names what is missing and how to get it.
    """
    if not directory.is_dir():
        raise ModelDirectoryError(
            f"model {directory}: there is no such directory; save one with save_pretrained, or give the path of a "
            "downloaded model (names on the Hub are not looked up)"
        )
    config = directory / "config.json"
    if not config.is_file():
        raise ModelDirectoryError(f"model {directory}: has no config.json; it is written by model.save_pretrained")
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelDirectoryError(f"{config}: is not JSON ({error}); save the model again") from error
    if not any(directory.glob("*.safetensors")):
        raise ModelDirectoryError(
            f"model {directory}: has no *.safetensors; save its weights with model.save_pretrained (pickled weights "
            "are not loaded)"
        )
    if not (directory / "tokenizer_config.json").is_file():
        raise ModelDirectoryError(
            f"model {directory}: has no tokenizer_config.json; put its tokenizer there with tokenizer.save_pretrained"
        )


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model directory. Raises ModelDirectoryError, also where it has no end-of-text token."""
    check_model_directory(directory)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise ModelDirectoryError(
            f"model {directory}: its tokenizer has no end-of-text token, so no completion would end; set eos_token "
            "in tokenizer_config.json"
        )
    return tokenizer
