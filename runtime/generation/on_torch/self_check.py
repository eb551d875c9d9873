"""Whether the torch engine computes a model as transformers do: some tokens through its cache, and in one plain pass.

Architectures differ in what they make of a cache: some ignore it, some keep another state beside it, some count
positions by themselves. The log-probabilities of sampling would then be those of another policy than the trained one.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from runtime.generation.on_torch.cached_model import CachedModel
from runtime.models.errors import UnsupportedModel

_TOKENS = 9
"""Of the longer of the two sequences that are tried."""
_LIMITS = {torch.float32: 1e-3}
"""Largest mean difference of two logits, as a share of their standard deviation: rounding makes some 1e-6 of it."""
_LIMIT = 0.1
"""The same for other types: rounding to bfloat16 makes some 1e-2 of it."""


def check_computes_alike(model: PreTrainedModel, tokens: int) -> None:
    """Compare two short sequences of different lengths; `tokens`, at least 2, is the longest that will be asked for.

    Raises UnsupportedModel where the logits differ, or where the model does not take the engine's cache at all.
    """
    total = min(_TOKENS, tokens)
    steps = total // 2
    vocabulary = model.config.get_text_config().vocab_size
    sequences = [
        np.array([(13 + 31 * row + 7 * column) % vocabulary for column in range(length + steps)], dtype=np.int32)
        for row, length in enumerate((total - steps, max(1, total - steps - 2)))
    ]
    name = type(model).__name__
    with torch.inference_mode():
        try:
            cached = _through_the_cache(model, sequences, steps)
        except Exception as error:
            raise UnsupportedModel(
                f"{name} does not work with the key-value cache of the torch engine ({type(error).__name__}: {error}); "
                "use generation.engine.name: vllm, or another model"
            ) from error
        plain = [_in_one_pass(model, sequence)[-steps:] for sequence in sequences]
    limit = _LIMITS.get(model.dtype, _LIMIT)
    for with_cache, without in zip(cached, plain, strict=True):
        # The median over positions: in bfloat16 a single token may go to another expert by rounding alone.
        difference = float(((with_cache - without).abs().mean(dim=-1) / without.std(dim=-1)).median())
        if difference > limit:
            raise UnsupportedModel(
                f"{name} gives other logits with the key-value cache of the torch engine than in a plain forward pass, "
                f"by {difference:.2g} of their standard deviation (allowed: {limit:g}), so it would sample from "
                "another policy than the trained one; use generation.engine.name: vllm, or another model"
            )


def _through_the_cache(
    model: PreTrainedModel, sequences: list[np.ndarray[tuple[int], np.dtype[np.int32]]], steps: int
) -> list[torch.Tensor]:
    """Logits after each of the last `steps` tokens, (steps, vocabulary) a sequence, as the engine computes them."""
    policy = CachedModel(model, len(sequences))
    policy.cache.reserve(len(sequences), max(len(sequence) for sequence in sequences))
    policy.prefill([sequence[: len(sequence) - steps + 1] for sequence in sequences], [1] * len(sequences), 0)
    decoded = [
        policy.decode(
            [int(sequence[len(sequence) - steps + step]) for sequence in sequences],
            [len(sequence) - steps + step for sequence in sequences],
        ).float()
        for step in range(steps)
    ]
    return list(torch.stack(decoded, dim=1))


def _in_one_pass(model: PreTrainedModel, sequence: np.ndarray[tuple[int], np.dtype[np.int32]]) -> torch.Tensor:
    """Logits after each token, (tokens, vocabulary)."""
    ids = torch.from_numpy(sequence.astype(np.int64))[None].to(next(model.parameters()).device)
    logits: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return logits[0].float()
