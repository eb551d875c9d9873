"""The divergence from a reference policy: its estimators, and the penalty of each token.

Tokens are drawn from a policy that is itself being trained. The divergence is an expectation under it, so its gradient
has two parts: how the estimate of a drawn token moves, and how its probability of being drawn moves, which is the
score term. The penalty of a token is therefore w × estimate, where w carries the gradient of the probability:

| `use_on_policy_kl_approximation` | w                         | drawn from the policy that trains | from an older one |
| -------------------------------- | ------------------------- | --------------------------------- | ----------------- |
| true                             | current / generation      | right                             | right             |
| false                            | current / sg(current) = 1 | right                             | biased            |

"Right" is said of one token in its context: summed over the tokens that could be drawn there, the gradient of the
penalty is that of the divergence (for k1 and k3), or that of the mean of d² / 2 (for k2). What a token does to the
contexts that follow it is left out, as everywhere in a loss that adds up tokens. Where a clamp binds, there is no
gradient.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from runtime.training.config import KlType, LossConfig

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this: where exp overflows, a clipped token has gradient 0 × infinity, not 0."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """log π(token) − log π_old(token), any shape, clamped to ±20."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def probability_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """π(token) / π_old(token), any shape, from log-probabilities; the log-ratio is clamped to ±20."""
    return torch.exp(log_ratio(logprobs, old_logprobs))


def kl_estimate(log_ratio: Tensor, kl_type: KlType) -> Tensor:
    """Schulman's estimators of KL(π ‖ π_ref) from tokens sampled under π (joschu.net/blog/kl-approx.html).

    With d = log π − log π_ref: k1 = d (unbiased, high variance, may be negative); k2 = d² / 2 (biased,
    never negative); k3 = exp(−d) + d − 1 (unbiased, never negative; GRPO's, arXiv:2402.03300, equation 4).

    Args:
        log_ratio: d of each token, any shape.
        kl_type: The estimator.
    """
    match kl_type:
        case "k1":
            return log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return torch.exp(-log_ratio) + log_ratio - 1
        case _:
            assert_never(kl_type)


def reference_kl(
    logprobs: Tensor, reference_logprobs: Tensor, generation_logprobs: Tensor, config: LossConfig
) -> Tensor:
    """Estimate KL(π ‖ π_ref) at each token, so that its gradient is that of the divergence (see above).

    d is clamped to ± `kl_input_clamp_value`; a token where that binds has no gradient. w × estimate is clamped to
    ± `kl_output_clamp_value`.

    Args:
        logprobs: Log-probabilities under π, with gradient, any shape.
        reference_logprobs: The same under π_ref.
        generation_logprobs: The same under the weights that sampled.
        config: The loss block.

    Returns:
        In nats, float64: k3 of a far reference overflows float32, and infinity would leave a gradient of NaN.
    """
    sampled_under = generation_logprobs if config.use_on_policy_kl_approximation else logprobs.detach()
    weight = probability_ratio(logprobs, sampled_under).double()
    log_ratio = logprobs.double() - reference_logprobs.double()
    if config.kl_input_clamp_value is not None:
        far = log_ratio.detach().abs() > config.kl_input_clamp_value
        log_ratio = log_ratio.clamp(-config.kl_input_clamp_value, config.kl_input_clamp_value)
        weight = torch.where(far, weight.detach(), weight)
    estimate = weight * kl_estimate(log_ratio, config.reference_policy_kl_type)
    if config.kl_output_clamp_value is not None:
        estimate = estimate.clamp(-config.kl_output_clamp_value, config.kl_output_clamp_value)
    return estimate
