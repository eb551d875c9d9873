"""Which models the torch engine computes correctly: by their configuration, and by a comparison of logits.

Architectures use a cache differently: some ignore it, some keep another state, some count positions themselves. The
log-probabilities of sampling would then be those of another policy than the trained one.
"""

import numpy as np
import torch
from transformers import PreTrainedModel

from runtime.generation.on_torch.cached_model import CachedModel
from runtime.models.directory import UnsupportedModel
from runtime.models.weights import max_positions


def check_supported(
    model: PreTrainedModel, tokens: int, keys: str = "generation.max_prompt_tokens + max_new_tokens"
) -> None:
    """Raise UnsupportedModel if the cache or the positions cannot serve sequences of this many tokens.

    keys: those of the configuration that add up to `tokens`, for the message.
    """
    text = model.config.get_text_config()
    name = type(model).__name__
    settings = text.to_dict()
    window = settings.get("sliding_window")
    kinds = set(settings.get("layer_types") or ["full_attention" if window is None else "sliding_attention"])
    if "local" in settings.get("attention_layers", ()):  # GPT-Neo's words
        window, kinds = settings["window_size"], {"sliding_attention"}
    if kinds - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(
            f"{name} has layers of {sorted(kinds)}; the torch engine keeps keys and values of full attention only: "
            "use generation.engine.name: vllm"
        )
    if "sliding_attention" in kinds and window is not None and tokens > window:
        raise UnsupportedModel(
            f"{name} attends to a window of {window} tokens and {keys} is "
            f"{tokens}; lower them to {window}, or use generation.engine.name: vllm"
        )
    limit = max_positions(model.config)
    if limit is not None and tokens > limit[1]:
        raise UnsupportedModel(
            f"{name} has {limit[1]} positions and {keys} is {tokens}; lower them to {limit[1]} together"
        )


_TOKENS = 9
"""Length of the longer of the two test sequences."""
_LIMIT_FLOAT32, _LIMIT = 1e-3, 0.1
"""Largest mean difference of two logits, as a share of their standard deviation. Rounding causes 1e-6 and 1e-2."""


def check_computes_alike(model: PreTrainedModel, tokens: int) -> None:
    """Compare logits through the engine's cache with those of a plain forward pass, on two short sequences.

    tokens: the longest sequence that will be requested, at least 2. Raises UnsupportedModel if the logits differ, or if
    the model does not accept the cache.
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
    limit = _LIMIT_FLOAT32 if model.dtype == torch.float32 else _LIMIT
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
