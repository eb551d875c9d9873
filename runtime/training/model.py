"""A Hugging Face causal LM directory as a policy, and the log-probabilities of tokens under it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from runtime.models.errors import UnsupportedModel
from runtime.models.limits import max_positions
from runtime.models.weights import listed
from runtime.training.batching import Microbatch


def load_causal_lm(directory: str) -> PreTrainedModel:
    """Load a causal LM from a local directory, in float32, in evaluation mode, with dropout off.

    The loss compares the policy with the one that sampled, so it is computed in the same way: without dropout, and
    without whatever else an architecture does in training mode alone, such as noise in a router.

    Raises:
        FileNotFoundError: The directory has no config.json.
        UnsupportedModel: Its files lack weights that the model has.
    """
    if not (Path(directory) / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} has no config.json: set policy.model_name to a local directory of a Hugging Face "
            "causal LM, as save_pretrained writes it"
        )
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    turn_dropout_off(config)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        directory, config=config, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    model, info = loaded  # a pair, which its type hints do not say
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"{directory} holds a {type(model).__name__}, which is no PreTrainedModel")
    if info["missing_keys"]:
        raise UnsupportedModel(
            f"{directory} lacks weights of {type(model).__name__}, which would be random: "
            f"{listed(info['missing_keys'])}; save the whole causal LM there with model.save_pretrained"
        )
    model.eval()
    return model


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Recompute the activations of each decoder layer in the backward pass.

    A layer does so in training mode alone: its own flag is set, and what is inside it stays in evaluation mode.

    Raises:
        ValueError: The architecture has no layers that can.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in decoder_layers(model):
        layer.training = True


def turn_dropout_off(config: PretrainedConfig) -> None:
    """Set every dropout rate of a model configuration to 0: its numeric fields whose name contains "drop"."""
    for name, value in list(vars(config).items()):
        if "drop" in name and isinstance(value, float | int) and not isinstance(value, bool):
            setattr(config, name, 0.0)


def vocabulary_size(model: PreTrainedModel) -> int:
    """How many tokens a model knows."""
    return int(model.config.get_text_config().vocab_size)


def check_context(model: PreTrainedModel, max_total_sequence_length: int) -> None:
    """Refuse rollouts longer than the positions that a model was built with.

    Raises:
        ValueError: The model's configuration has fewer positions. One that names none is not checked.
    """
    limit = max_positions(model.config)
    if limit is not None and limit[1] < max_total_sequence_length:
        name, positions = limit
        raise ValueError(
            f"policy.max_total_sequence_length is {max_total_sequence_length}, but the model has {positions} "
            f"positions ({name} in its config.json): set it to at most {positions}"
        )


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of a causal LM, from the first to the last.

    Raises:
        ValueError: The architecture has none that transformers marks as layers.
    """
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no layer derived from transformers' GradientCheckpointingLayer: "
            "its layers can be neither sharded, nor chosen, nor recomputed; leave train_last_layers null and "
            "gradient_checkpointing false, and use one rank"
        )
    return layers


def freeze_all_but_last_layers(model: nn.Module, train_last_layers: int) -> None:
    """Leave only the parameters inside the last decoder layers trainable.

    Embeddings, the final norm and the output head are frozen with the layers below, so that neither the
    gradient of the (often tied) embedding nor its optimizer state is kept.

    Raises:
        ValueError: The model has fewer layers.
    """
    layers = decoder_layers(model)
    if train_last_layers > len(layers):
        raise ValueError(
            f"train_last_layers is {train_last_layers}, but the model has {len(layers)} decoder layers: "
            f"set it to at most {len(layers)}, or to null to train all parameters"
        )
    model.requires_grad_(False)
    for layer in layers[-train_last_layers:]:
        layer.requires_grad_(True)


def trainable_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that the optimizer moves, by name; tied ones once."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def token_logprobs(
    model: nn.Module,
    batch: Microbatch,
    *,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each sampled token under the model, and the entropy of the policy there.

    The logits become float32 before the softmax, and only at the positions that count.

    Args:
        model: A causal LM.
        batch: The tokens, on the model's device.
        temperature: That of sampling: the policy is softmax(logits / temperature).
        entropy_gradient: Whether the entropy is to be differentiated.

    Returns:
        Both float32, (sequences, T), 0 where loss_mask is false; the entropy in nats.
    """
    logits = model(input_ids=batch.token_ids, attention_mask=batch.attention_mask, use_cache=False).logits
    trained = batch.loss_mask[:, 1:]
    log_softmax = torch.log_softmax(logits[:, :-1][trained].float() / temperature, dim=-1)
    targets = batch.token_ids[:, 1:][trained]
    logprobs = log_softmax.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1)
    zeros = torch.zeros_like(batch.generation_logprobs)
    return zeros.masked_scatter(batch.loss_mask, logprobs), zeros.masked_scatter(batch.loss_mask, entropy)
