"""Models that cannot be trained or sampled from as configured, told before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from transformers import PreTrainedModel

from runtime.generation.config import TorchEngineConfig
from runtime.generation.on_torch.self_check import check_supported
from runtime.settings import Settings
from runtime.training.model import check_context, decoder_layers, freeze_all_but_last_layers


def model_refusals(settings: Settings, model: PreTrainedModel) -> tuple[str, ...]:
    """Why a model cannot be trained or sampled from; `model` may be without memory, and its layers get frozen."""
    policy, generation = settings.policy, settings.generation
    checks: list[Callable[[], object]] = [partial(check_context, model, policy.max_total_sequence_length)]
    if policy.train_last_layers is not None:
        checks.append(partial(freeze_all_but_last_layers, model, policy.train_last_layers))
    elif policy.gradient_checkpointing or settings.cluster.num_trainer_ranks > 1:
        checks.append(partial(decoder_layers, model))
    if isinstance(generation.engine, TorchEngineConfig):
        tokens = generation.max_prompt_tokens + generation.max_new_tokens
        checks.append(partial(check_supported, model, tokens))
    refusals = []
    for check in checks:
        try:
            check()
        except ValueError as error:
            refusals.append(str(error))
    return tuple(refusals)
