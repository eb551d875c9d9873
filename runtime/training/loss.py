"""The policy loss of GRPO and its relatives, token by token.

Three policies meet in it: the one that *generated* the rollout (log-probabilities come with it), the *old*
one, in the denominator of the clipped ratio, and the *current* one, which is differentiated. With A the
advantage of the rollout and sg the stopped gradient, the loss of a token is

    w × clipped(ratio, A) + reference_policy_kl_penalty × KL − entropy_coefficient × entropy

(for KL see `runtime.training.kl`)

| `old_policy` | correction | ratio                        | w                                      |
| ------------ | ---------- | ---------------------------- | -------------------------------------- |
| recomputed   | true       | current / sg(current) = 1    | min(sg(current) / generation, the cap) |
| recomputed   | false      | current / sg(current) = 1    | 1                                      |
| generation   | true       | current / generation         | 1                                      |

`recomputed` is the decoupled objective (arXiv:2110.00641) as NeMo-RL computes it. Its old policy is the
trainer's own at the start of the step. A step's gradients accumulate under weights that don't move and are
applied once, so the old policy *is* the current one: its log-probabilities are those of the forward pass
with the gradient stopped, without a second pass. The ratio is 1 with the gradient of log π, the clip never
binds (NeMo-RL's `force_on_policy_ratio`, here by construction), and staleness is corrected by w alone.

`generation` is PPO's objective (arXiv:1707.06347) with the sampling policy as the old one: the ratio both
corrects for staleness and is clipped by it, which bounds how far a step goes on stale rollouts.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from runtime.training.config import Aggregation, LossConfig
from runtime.training.kl import kl_estimate, log_ratio, probability_ratio, reference_kl
from runtime.training.totals import LossSums


def clipped_policy_loss(
    ratio: Tensor,
    advantages: Tensor,
    *,
    ratio_clip_min: float,
    ratio_clip_max: float,
    ratio_clip_c: float | None,
) -> Tensor:
    """The clipped surrogate (PPO, arXiv:1707.06347), with bounds apart (DAPO, arXiv:2503.14476, equation 10).

    −min(ratio × A, clip(ratio, 1 − ratio_clip_min, 1 + ratio_clip_max) × A); where A < 0 and `ratio_clip_c`
    is given at most −c × A (dual clip, arXiv:1912.09729).

    Args:
        ratio: Shape (sequences, T).
        advantages: Shape (sequences,).
        ratio_clip_min: Distance of the lower bound from 1.
        ratio_clip_max: Distance of the upper bound from 1.
        ratio_clip_c: Bound of the ratio where the advantage is negative, above 1; None for no bound.

    Returns:
        The loss of each token, to be minimised, shape (sequences, T).
    """
    advantage = advantages.unsqueeze(-1)
    bounded = ratio.clamp(1 - ratio_clip_min, 1 + ratio_clip_max)
    objective = torch.minimum(ratio * advantage, bounded * advantage)
    if ratio_clip_c is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, ratio_clip_c * advantage), objective)
    return -objective


def clip_binds(
    ratio: Tensor,
    advantages: Tensor,
    *,
    ratio_clip_min: float,
    ratio_clip_max: float,
    ratio_clip_c: float | None,
) -> Tensor:
    """Where the clip takes away a token's gradient: bool, (sequences, T); see `clipped_policy_loss`."""
    advantage = advantages.unsqueeze(-1)
    too_high = (ratio > 1 + ratio_clip_max) & (advantage > 0)
    too_low = (ratio < 1 - ratio_clip_min) & (advantage < 0)
    if ratio_clip_c is None:
        return too_high | too_low
    return too_high | too_low | ((ratio > ratio_clip_c) & (advantage < 0))


def importance_weights(prev_logprobs: Tensor, generation_logprobs: Tensor, cap: float | None) -> Tensor:
    """Truncated importance weights min(π_prev / π_generation, cap) of each token, without gradient.

    Truncation trades a little bias for bounded variance (Ionides 2008, doi:10.1198/106186008X320456); applied
    between the policy that trains and an inference engine's it is known as TIS.

    Args:
        prev_logprobs: Log-probabilities under the trainer's weights at the start of the step, any shape.
        generation_logprobs: Log-probabilities under the weights that sampled, the same shape.
        cap: Upper bound; None for none.
    """
    weights = probability_ratio(prev_logprobs, generation_logprobs).detach()
    return weights if cap is None else weights.clamp(max=cap)


def aggregate(token_values: Tensor, mask: Tensor, aggregation: Aggregation) -> Tensor:
    """Add up the values of tokens, not yet divided by what the whole step adds up to (`normaliser`).

    Args:
        token_values: Shape (sequences, T).
        mask: bool, the same shape: the tokens that count.
        aggregation: "sequence" divides each row by its tokens first; the others add tokens as they are.

    Returns:
        A scalar.
    """
    kept = torch.where(mask, token_values, 0.0)
    if aggregation == "sequence":
        return (kept.sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)).sum()
    return kept.sum()


def normaliser(aggregation: Aggregation, *, tokens: int, sequences: int, dr_grpo_length: int) -> int:
    """What a step's added-up loss and gradient are divided by, once, when the step is finished.

    | aggregation | divisor              | the loss is                                                   |
    | ----------- | -------------------- | ------------------------------------------------------------- |
    | token       | tokens               | the mean over tokens (DAPO, arXiv:2503.14476)                 |
    | sequence    | sequences            | the mean over rollouts of their means (GRPO, arXiv:2402.03300) |
    | dr_grpo     | sequences × constant | free of each rollout's length (Dr. GRPO, arXiv:2503.20783)    |

    Args:
        aggregation: Which.
        tokens: Sampled tokens that the step trained on.
        sequences: Rollouts that the step trained on.
        dr_grpo_length: The constant, in tokens.
    """
    match aggregation:
        case "token":
            return tokens
        case "sequence":
            return sequences
        case "dr_grpo":
            return sequences * dr_grpo_length
        case _:
            assert_never(aggregation)


def policy_loss(
    *,
    logprobs: Tensor,
    entropy: Tensor,
    generation_logprobs: Tensor,
    reference_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    config: LossConfig,
) -> tuple[Tensor, LossSums]:
    """The loss of one microbatch, added up but not divided, and what the metrics need.

    Args:
        logprobs: Log-probabilities of the tokens under the current policy, with gradient, (sequences, T).
        entropy: Entropy of the policy there in nats, with gradient if it has a bonus, (sequences, T).
        generation_logprobs: Log-probabilities under the policy that sampled, (sequences, T).
        reference_logprobs: The same under the reference policy; None without one.
        advantages: Shape (sequences,).
        mask: bool, (sequences, T): the sampled tokens.
        config: The loss block.

    Returns:
        The undivided loss, a scalar with gradient, and the sums without.

    Raises:
        ValueError: A KL penalty without reference log-probabilities.
    """
    prev_logprobs = logprobs.detach()
    old_logprobs = generation_logprobs if config.old_policy == "generation" else prev_logprobs
    ratio = probability_ratio(logprobs, old_logprobs)
    token_loss = clipped_policy_loss(
        ratio,
        advantages,
        ratio_clip_min=config.ratio_clip_min,
        ratio_clip_max=config.ratio_clip_max,
        ratio_clip_c=config.ratio_clip_c,
    )
    if config.old_policy == "recomputed" and config.use_importance_sampling_correction:
        cap = config.truncated_importance_sampling_ratio
        token_loss = importance_weights(prev_logprobs, generation_logprobs, cap) * token_loss
    kl_to_reference = torch.zeros_like(prev_logprobs)
    if reference_logprobs is not None:
        kl_to_reference = reference_kl(logprobs, reference_logprobs, generation_logprobs, config)
        token_loss = token_loss + config.reference_policy_kl_penalty * kl_to_reference
    elif config.reference_policy_kl_penalty > 0:
        raise ValueError(
            f"reference_policy_kl_penalty is {config.reference_policy_kl_penalty}, but there are no "
            "reference_logprobs: compute them under the reference model, or set the penalty to 0"
        )
    if config.entropy_coefficient > 0:
        token_loss = token_loss - config.entropy_coefficient * entropy
    loss = aggregate(token_loss, mask, config.aggregation)

    untruncated = importance_weights(prev_logprobs, generation_logprobs, cap=None)
    clipped = clip_binds(
        ratio.detach(),
        advantages,
        ratio_clip_min=config.ratio_clip_min,
        ratio_clip_max=config.ratio_clip_max,
        ratio_clip_c=config.ratio_clip_c,
    )
    return loss, LossSums(
        loss=loss.detach().double(),
        tokens=mask.sum().double(),
        sequences=mask.any(dim=-1).sum().double(),
        entropy=_masked_sum(entropy.detach(), mask),
        # Sampled from the generating policy, which therefore comes first: KL(generation ‖ current).
        kl=_masked_sum(kl_estimate(log_ratio(generation_logprobs, prev_logprobs), "k3"), mask),
        reference_kl=_masked_sum(kl_to_reference.detach(), mask),
        clipped=_masked_sum(clipped, mask),
        importance_weight=_masked_sum(untruncated, mask),
        importance_weight_max=torch.where(mask, untruncated, 0.0).max().double(),
    )


def _masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values.double(), 0.0).sum()
