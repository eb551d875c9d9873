"""How much likelier a token is under one policy than under another."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this: where exp overflows, a clipped token has gradient 0 × infinity, not 0."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """log π(token) − log π_old(token), any shape, clamped to ±20."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def probability_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """π(token) / π_old(token), any shape, from log-probabilities; the log-ratio is clamped to ±20."""
    return torch.exp(log_ratio(logprobs, old_logprobs))
