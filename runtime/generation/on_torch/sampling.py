"""Draw the next token of many sequences at once, each with its own stream of random numbers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from runtime.generation.config import Sampling

_UNIFORM_BITS = 23
"""With 23 bits, u * total < total holds after rounding to float32, for every total: no draw falls off the end."""


def uniforms(seed: int, num_generations: int, max_new_tokens: int) -> npt.NDArray[np.float32]:
    """Random numbers in [0, 1) for a group, shape (num_generations, max_new_tokens).

    Row s, column t decides token t of sibling s. They are drawn ahead, so that a sequence's numbers depend on its seed
    and sibling alone, not on the other sequences in the batch.
    """
    bits = np.random.Generator(np.random.PCG64(seed)).integers(
        0, 1 << _UNIFORM_BITS, size=(num_generations, max_new_tokens), dtype=np.int32
    )
    return (bits / np.float32(1 << _UNIFORM_BITS)).astype(np.float32)


def sample(
    logits: torch.Tensor, options: Sequence[Sampling], uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token for each of n sequences.

    logits: (n, vocabulary), any float type. options: one a sequence. uniform: (n,), float32 in [0, 1).
    Returns token ids (n,), int64, and their log-probabilities (n,), float32, as GeneratedSequence defines them. A
    log-probability is not finite if the logits were not.
    """
    logits = logits.float()
    if any(option.temperature not in (0.0, 1.0) for option in options):
        scale = [option.temperature or 1.0 for option in options]
        logits = logits / torch.tensor(scale, device=logits.device)[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    if any(option.top_p < 1.0 or option.top_k is not None for option in options):
        ids = _draw_truncated(logprobs, options, uniform)
    else:
        ids = _draw(logprobs.exp(), uniform)
    if any(option.temperature == 0.0 for option in options):
        greedy = torch.tensor([option.temperature == 0.0 for option in options], device=logits.device)
        ids = torch.where(greedy, logprobs.argmax(dim=-1), ids)
    return ids, logprobs.gather(1, ids[:, None])[:, 0]


def _draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution of non-negative weights (n, k) at `uniform` (n,): indices (n,), int64.

    `right` skips entries of weight 0, leading ones too. The clamp matters only for NaN weights, which the caller finds
    in the log-probabilities.
    """
    cumulative = weights.cumsum(dim=-1)
    target = uniform * cumulative[:, -1]
    ids = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return ids.clamp_(max=weights.shape[1] - 1)


def _draw_truncated(logprobs: torch.Tensor, options: Sequence[Sampling], uniform: torch.Tensor) -> torch.Tensor:
    """As `_draw`, among the tokens that each sequence's top_k and top_p keep. The likeliest is always kept."""
    vocabulary = logprobs.shape[1]
    device = logprobs.device
    top_k = torch.tensor([option.top_k or vocabulary for option in options], device=device)
    top_p = torch.tensor([option.top_p for option in options], device=device)
    probs, order = logprobs.exp().sort(dim=-1, descending=True, stable=True)
    before = probs.cumsum(dim=-1) - probs
    rank = torch.arange(vocabulary, device=device)
    # top_p = 1 keeps all: rounding may push the sum before the last tokens up to 1.
    kept = (rank < top_k[:, None]) & ((before < top_p[:, None]) | (top_p[:, None] >= 1.0))
    return order.gather(1, _draw(probs * kept, uniform)[:, None])[:, 0]
