"""Load a model or a tokenizer from a directory, or refuse it by name: transformers would make missing weights up."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from runtime.models.directory import ModelDirectoryProblem, UnsupportedModel
from runtime.models.weights import listed


def load_pretrained(
    directory: Path | str, dtype: torch.dtype, config: PretrainedConfig | None = None
) -> PreTrainedModel:
    """The causal LM of a local directory with exactly the weights of its files.

    config: in place of the directory's config.json. Tensors that the model does not have are ignored; transformers
    names them on stderr.

    Raises UnsupportedModel if the files lack weights of the model, hold some of another shape, or hold some that are
    not finite; transformers' OSError for a directory that is not a model.
    """
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        directory,
        **({} if config is None else {"config": config}),
        dtype=dtype,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    model, info = loaded  # a pair, which its type hints do not say
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"{directory} holds a {type(model).__name__}, not a PreTrainedModel")
    remedy = "check num_hidden_layers and its like in config.json, or save the whole model there with save_pretrained"
    if info["missing_keys"]:
        raise UnsupportedModel(
            f"{directory} lacks weights of {type(model).__name__}, which would be random: "
            f"{listed(info['missing_keys'])}; {remedy}"
        )
    if info["mismatched_keys"]:
        shapes = [
            f"{name} {tuple(stored)}, not {tuple(wanted)}" for name, stored, wanted in sorted(info["mismatched_keys"])
        ]
        raise UnsupportedModel(
            f"{directory} has weights of other shapes than {type(model).__name__}: {listed(shapes)}; {remedy}"
        )
    if broken := [name for name, weight in model.named_parameters() if not weight.isfinite().all()]:
        raise UnsupportedModel(
            f"{directory} has weights that are NaN or infinite, from which nothing can be sampled or trained: "
            f"{listed(broken)}; take a checkpoint from before they were"
        )
    return model


def load_tokenizer(directory: Path | str) -> PreTrainedTokenizerBase:
    """The tokenizer of a local directory. Raises ModelDirectoryProblem if its files are not one."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers and tokenizers raise any, such as a KeyError for {} in tokenizer.json
        raise ModelDirectoryProblem(
            f"{Path(directory) / 'tokenizer.json'} or another file of the tokenizer there cannot be loaded "
            f"({type(error).__name__}: {error}); copy the tokenizer again, or save it there with "
            "tokenizer.save_pretrained"
        ) from error
    return tokenizer
