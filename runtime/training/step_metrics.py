"""The metrics of one finished step. Imports no torch, since the controller reads them too."""

from dataclasses import dataclass
from enum import StrEnum

from fsm.errors import EvenstepError

NOTHING_TRAINED_REMEDY = (
    "Raise generation.max_new_tokens (max_prompt_tokens for conversations), or set loss_fn.overlong_filtering to false"
)
"""The remedy if overlong filtering leaves out every rollout of a step."""


class Number(StrEnum):
    """A number of a step that may be not finite."""

    ADVANTAGES = "the advantages"
    REFERENCE_LOGPROBS = "the reference model's log-probabilities"
    LOGPROBS = "the policy's log-probabilities"
    LOSS = "the loss"
    GRADIENT = "the gradient"
    WEIGHTS = "the weights after the step"


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The first number of a step that was not finite."""

    what: Number
    microbatch: int | None = None
    """Counted from 1 over the step's microbatches of a rank; None if only the whole step shows it."""
    ranks: tuple[int, ...] = ()
    """The trainer ranks on which it was."""
    prompts: tuple[int, ...] = ()
    """The first of the prompts in question, in order."""
    more_prompts: int = 0

    @property
    def doubts_weights(self) -> bool:
        """Whether the weights may be to blame: a reward alone makes advantages."""
        return self.what is not Number.ADVANTAGES

    def __str__(self) -> str:
        if self.microbatch is None:
            return str(self.what)
        named = ", ".join(map(str, self.prompts))
        more = f" and {self.more_prompts} more" if self.more_prompts else ""
        of = f" of prompt{'s' * (len(self.prompts) + self.more_prompts > 1)} {named}{more}" if self.prompts else ""
        on = f" on trainer rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"
        return f"{self.what}{of} in microbatch {self.microbatch}{on}"


class WeightsNotFinite(EvenstepError):
    """Weights are NaN or infinite."""


NOT_FINITE_REMEDY = (
    "Look at the rewards of these prompts, lower optimizer.lr or optimizer.max_grad_norm, or compute in float32"
)


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
    not_finite: NotFinite | None = None
    """Why the step was not applied: weights, AdamW's moments and the schedule stayed. The metrics that were not finite
    are so here."""
