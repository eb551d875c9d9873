"""The policy loss of GRPO and its relatives, token by token.

It involves three policies: the *generating* one, which sampled the rollout and gave its log-probabilities; the *old*
one, in the denominator of the clipped ratio; and the *current* one, which is differentiated. With A the advantage of
the rollout and sg the stopped gradient, the loss of a token is

    w × clipped(ratio, A) + reference_policy_kl_penalty × KL − entropy_coefficient × entropy

| `old_policy` | correction | ratio                     | w                                      |
| ------------ | ---------- | ------------------------- | -------------------------------------- |
| recomputed   | true       | current / sg(current) = 1 | min(sg(current) / generation, the cap) |
| recomputed   | false      | current / sg(current) = 1 | 1                                      |
| generation   | true       | current / generation      | 1                                      |
| generation   | false      | refused: this ratio is the correction                              |

`recomputed` is the decoupled objective (arXiv:2110.00641) as NeMo-RL computes it. Its old policy is the trainer's at
the start of the step. A step accumulates gradients under fixed weights and applies them once, so that policy *is* the
current one, and one forward pass gives both log-probabilities. The ratio is 1 with the gradient of log π, the clip
never binds (NeMo-RL's `force_on_policy_ratio`, here by construction), and w alone corrects for staleness.

`generation` is PPO's objective (arXiv:1707.06347) with the generating policy as the old one. The ratio corrects for
staleness, and its clip bounds how far a step goes on stale rollouts.

KL is the divergence from a reference policy, estimated on the sampled tokens. It is an expectation under the policy
that trains, so its gradient has two parts: the estimate of a token moves, and the probability of drawing the token
moves (the score term). The penalty of a token is therefore v × estimate, where v carries the gradient of the
probability:

| `use_on_policy_kl_approximation` | v                         | tokens of the current policy | of an older one |
| -------------------------------- | ------------------------- | ---------------------------- | --------------- |
| true                             | current / generation      | right                        | right           |
| false                            | current / sg(current) = 1 | right                        | biased          |

"Right" is about one token in its context: summed over the tokens that could be drawn there, the gradient of the penalty
is that of the divergence (k1, k3) or of the mean of d² / 2 (k2). A token's effect on later contexts is left out, as in
every loss that adds up tokens. Where a clamp binds, the gradient is 0.
"""

import torch
from torch import Tensor

from runtime.training.config import Aggregation, KlType, LossConfig
from runtime.training.totals import StepSums, no_sums

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to ± this. If exp overflowed, a clipped token's gradient would be 0 × infinity = NaN."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """log π(token) − log π_old(token), any shape, clamped to ±20."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def probability_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """π(token) / π_old(token), any shape, from log-probabilities; the log-ratio is clamped to ±20."""
    return torch.exp(log_ratio(logprobs, old_logprobs))


LOGPROB_MISMATCH_NATS = 0.1
"""A token counts as mismatched if generation's and training's log-probabilities differ by more."""


def clipped_policy_loss(ratio: Tensor, advantages: Tensor, config: LossConfig) -> tuple[Tensor, Tensor, Tensor]:
    """The clipped surrogate (PPO, arXiv:1707.06347), with separate bounds (DAPO, arXiv:2503.14476, equation 10).

    −min(ratio × A, clip(ratio, 1 − ratio_clip_min, 1 + ratio_clip_max) × A). If A < 0 and `ratio_clip_c` is given, at
    most −c × A (dual clip, arXiv:1912.09729).

    ratio: (sequences, T). advantages: (sequences,).
    Returns the loss of each token, to be minimised, and whether the lower bound removes its gradient, or an upper one
    (bool), all (sequences, T).
    """
    low, high, c = 1 - config.ratio_clip_min, 1 + config.ratio_clip_max, config.ratio_clip_c
    advantage = advantages.unsqueeze(-1)
    objective = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    fixed = ratio.detach()
    below, above = (fixed < low) & (advantage < 0), (fixed > high) & (advantage > 0)
    if c is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, c * advantage), objective)
        above |= (fixed > c) & (advantage < 0)
    return -objective, below, above


def importance_weights(logprobs: Tensor, generation_logprobs: Tensor, cap: float | None) -> Tensor:
    """Truncated importance weights min(π / π_generation, cap) of each token, without gradient, any shape.

    Truncation trades a little bias for bounded variance (Ionides 2008, doi:10.1198/106186008X320456). Between the
    policy that trains and that of an inference engine it is known as TIS.
    """
    weights = probability_ratio(logprobs, generation_logprobs).detach()
    return weights if cap is None else weights.clamp(max=cap)


def kl_estimate(log_ratio: Tensor, kl_type: KlType) -> Tensor:
    """Schulman's estimators of KL(π ‖ π_ref) from tokens sampled under π (joschu.net/blog/kl-approx.html).

    With d = log π − log π_ref, any shape: k1 = d (unbiased, high variance, may be negative); k2 = d² / 2 (biased, never
    negative); k3 = exp(−d) + d − 1 (unbiased, never negative; GRPO's, arXiv:2402.03300, equation 4).
    """
    if kl_type == "k1":
        return log_ratio
    return log_ratio.square() / 2 if kl_type == "k2" else torch.exp(-log_ratio) + log_ratio - 1


def reference_kl(
    logprobs: Tensor, reference_logprobs: Tensor, generation_logprobs: Tensor, config: LossConfig
) -> Tensor:
    """Estimate KL(π ‖ π_ref) at each token, so that its gradient is that of the divergence (see the module).

    d is clamped to ± `kl_input_clamp_value`, and v × estimate to ± `kl_output_clamp_value`.
    In nats, float64: k3 of a far reference overflows float32, and infinity would give a gradient of NaN.
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


def aggregate(token_values: Tensor, mask: Tensor, aggregation: Aggregation) -> Tensor:
    """Add up the masked values of tokens to a scalar, not yet divided by the step's `normaliser`.

    token_values, mask: (sequences, T). "sequence" divides each row by its tokens first; the others add tokens
    unchanged.
    """
    kept = torch.where(mask, token_values, 0.0)
    if aggregation == "sequence":
        return (kept.sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)).sum()
    return kept.sum()


def normaliser(aggregation: Aggregation, *, tokens: int, sequences: int, dr_grpo_length: int) -> int:
    """The divisor of a step's summed loss and gradient, applied once, when the step is finished.

    | aggregation | divisor              | the loss is                                                   |
    | ----------- | -------------------- | ------------------------------------------------------------- |
    | token       | tokens               | the mean over tokens (DAPO, arXiv:2503.14476)                 |
    | sequence    | sequences            | the mean over rollouts of their means (GRPO, arXiv:2402.03300) |
    | dr_grpo     | sequences × constant | free of each rollout's length (Dr. GRPO, arXiv:2503.20783)    |
    """
    return {"token": tokens, "sequence": sequences, "dr_grpo": sequences * dr_grpo_length}[aggregation]


def policy_loss(
    *,
    logprobs: Tensor,
    entropy: Tensor,
    generation_logprobs: Tensor,
    reference_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    config: LossConfig,
) -> tuple[Tensor, StepSums[Tensor]]:
    """The summed loss of one microbatch, a scalar with gradient, and the sums for the metrics, without.

    logprobs, generation_logprobs, reference_logprobs: of the tokens under the current policy, with gradient; under the
    one that sampled; and under the reference, None without one. entropy: of the current policy in nats, with gradient
    if it has a bonus. mask: the sampled tokens. All (sequences, T). advantages: (sequences,).

    Raises ValueError for a KL penalty without reference log-probabilities.
    """
    fixed_logprobs = logprobs.detach()
    old_logprobs = generation_logprobs if config.old_policy == "generation" else fixed_logprobs
    token_loss, below, above = clipped_policy_loss(probability_ratio(logprobs, old_logprobs), advantages, config)
    if config.old_policy == "recomputed" and config.use_importance_sampling_correction:
        cap = config.truncated_importance_sampling_ratio
        token_loss = importance_weights(fixed_logprobs, generation_logprobs, cap) * token_loss
    kl_to_reference = torch.zeros_like(fixed_logprobs)
    if reference_logprobs is not None:
        kl_to_reference = reference_kl(logprobs, reference_logprobs, generation_logprobs, config)
        token_loss = token_loss + config.reference_policy_kl_penalty * kl_to_reference
    elif config.reference_policy_kl_penalty > 0:
        raise ValueError(
            f"reference_policy_kl_penalty is {config.reference_policy_kl_penalty}, but reference_logprobs are None: "
            "compute them under the reference model, or set the penalty to 0"
        )
    if config.entropy_coefficient > 0:
        token_loss = token_loss - config.entropy_coefficient * entropy
    loss = aggregate(token_loss, mask, config.aggregation)
    untruncated = importance_weights(fixed_logprobs, generation_logprobs, cap=None)
    mismatch = (fixed_logprobs - generation_logprobs).abs()
    return loss, no_sums(loss.device)._replace(
        loss=loss.detach().double(),
        tokens=mask.sum().double(),
        sequences=mask.any(dim=-1).sum().double(),
        entropy=_masked_sum(entropy.detach(), mask),
        # The tokens are the generating policy's, so it comes first: KL(generation ‖ current).
        kl=_masked_sum(kl_estimate(log_ratio(generation_logprobs, fixed_logprobs), "k3"), mask),
        reference_kl=_masked_sum(kl_to_reference.detach(), mask),
        clipped_low=_masked_sum(below, mask),
        clipped_high=_masked_sum(above, mask),
        importance_weight=_masked_sum(untruncated, mask),
        mismatch=_masked_sum(mismatch, mask),
        mismatched=_masked_sum(mismatch > LOGPROB_MISMATCH_NATS, mask),
        importance_weight_max=torch.where(mask, untruncated, 0.0).max().double(),
        mismatch_max=torch.where(mask, mismatch, 0.0).max().double(),
    )


def _masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values.double(), 0.0).sum()
