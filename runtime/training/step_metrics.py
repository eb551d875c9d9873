"""The metrics of one finished step. Imports no torch, since the controller reads them too."""

from dataclasses import dataclass

NOTHING_TRAINED_REMEDY = (
    "Raise generation.max_new_tokens (max_prompt_tokens for conversations), or set loss_fn.overlong_filtering to false"
)
"""The remedy if overlong filtering leaves out every rollout of a step."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Metrics of one finished step. Means are over the trained tokens unless said otherwise."""

    version: int
    """The version after the step."""
    loss: float
    """The minimised loss, divided as its aggregation says."""
    grad_norm: float
    """Euclidean norm of the gradient before clipping."""
    lr: float
    kl: float
    """k3 estimate of KL(generating policy ‖ policy that trains), nats a token."""
    reference_kl: float | None
    """KL(policy that trains ‖ reference) as the penalty estimates it (type, weight and clamps of `loss_fn`), nats a
    token; None without a reference."""
    entropy: float
    """Nats a token."""
    clip_fraction: float
    """Share of tokens whose gradient the clip removed; 0 by construction under `old_policy: recomputed`."""
    clip_fraction_low: float
    """Share of tokens held by the lower bound of the ratio."""
    clip_fraction_high: float
    """Share of tokens held by an upper bound: `ratio_clip_max`, or the dual clip's."""
    importance_weight_mean: float
    """Mean of π_train / π_generation before truncation; 1 when on-policy."""
    importance_weight_max: float
    logprob_mismatch_mean: float
    """|log π_train − log π_generation|, nats a token: the engines' difference, and that of stale weights."""
    logprob_mismatch_max: float
    logprob_mismatch_share: float
    """Share of tokens that differ by more than 0.1 nats (`loss.LOGPROB_MISMATCH_NATS`)."""
    tokens: int
    """Sampled tokens trained on; 0 if overlong filtering left every rollout out, and then the weights stayed."""
    sequences: int
    """Rollouts trained on."""
    masked_sequences: int
    """Rollouts left out of the loss by overlong filtering."""
    groups: int
    reward: float
    """Mean reward of all rollouts of the step, before shaping."""
    staleness_mean: float
    """Over groups."""
    staleness_max: int
    seconds: float
    """Time this rank spent in `accumulate` and `finish_step`."""
