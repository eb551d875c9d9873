"""A Hugging Face causal LM directory as a policy, and the log-probabilities of tokens under it."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from runtime.models.loading import load_pretrained
from runtime.models.weights import max_positions
from runtime.training.batching import Microbatch


def load_causal_lm(directory: str) -> PreTrainedModel:
    """Load a causal LM from a local directory, in float32, in evaluation mode, with dropout off.

    The loss compares the policy with the one that sampled, so both are computed alike: without dropout, and without
    anything else that an architecture does in training mode alone, such as noise in a router.

    Raises FileNotFoundError without a config.json, and what `load_pretrained` raises.
    """
    if not (Path(directory) / "config.json").is_file():
        raise FileNotFoundError(
            f"{directory} has no config.json: set policy.model_name to a local directory of a Hugging Face "
            "causal LM, as save_pretrained writes it"
        )
    config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    turn_dropout_off(config)
    model = load_pretrained(directory, torch.float32, config)
    model.eval()
    return model


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Recompute the activations of each decoder layer in the backward pass.

    A layer does so in training mode only, so its own flag is set; its submodules stay in evaluation mode.
    Raises ValueError if the architecture has no such layers.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in decoder_layers(model):
        layer.training = True


def turn_dropout_off(config: PretrainedConfig) -> None:
    """Set every dropout rate of a model configuration to 0: its numeric fields whose name contains "drop"."""
    for name, value in list(vars(config).items()):
        if "drop" in name and isinstance(value, float | int) and not isinstance(value, bool):
            setattr(config, name, 0.0)


def check_context(model: PreTrainedModel, max_total_sequence_length: int) -> None:
    """Raise ValueError if the model's configuration has fewer positions. One that names none is not checked."""
    limit = max_positions(model.config)
    if limit is not None and limit[1] < max_total_sequence_length:
        name, positions = limit
        raise ValueError(
            f"policy.max_total_sequence_length is {max_total_sequence_length}, but the model has {positions} "
            f"positions ({name} in its config.json): set it to at most {positions}"
        )


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of a causal LM, from first to last. Raises ValueError if transformers marks none as layers."""
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no layer derived from transformers' GradientCheckpointingLayer: "
            "its layers can be neither sharded, nor chosen, nor recomputed; leave train_last_layers null and "
            "gradient_checkpointing false, and use one rank"
        )
    return layers


def freeze_all_but_last_layers(model: nn.Module, train_last_layers: int) -> None:
    """Make only the parameters inside the last decoder layers trainable. Raises ValueError if the model has fewer.

    Embeddings, final norm and output head are frozen too. So neither the gradient of the (often tied) embedding nor its
    optimizer state takes memory.
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
    """The parameters that the optimizer trains, by name; tied ones once."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def token_logprobs(
    model: nn.Module, batch: Microbatch, *, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability of each sampled token of a batch, and the entropy of the policy softmax(logits / temperature).

    Both float32, (sequences, T), 0 where loss_mask is false; the entropy in nats, with gradient if `entropy_gradient`.
    Only logits of sampled tokens become float32. The batch is on the model's device.
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
