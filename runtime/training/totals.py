"""Sums that a step collects while its chunks are trained, and the metrics made of them when it is finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from runtime.training.ranks import Ranks
from runtime.training.step_metrics import StepMetrics


class LossSums(NamedTuple):
    """Sums over the trained tokens of a microbatch, a chunk or a step.

    Scalars, float64, on the model's device. They stay tensors until the step is finished, so that no microbatch waits
    for a GPU.
    """

    loss: Tensor
    """The undivided loss."""
    tokens: Tensor
    sequences: Tensor
    entropy: Tensor
    """In nats."""
    kl: Tensor
    """k3 estimates of KL(generating policy ‖ policy that trains)."""
    reference_kl: Tensor
    """Estimates of KL(policy that trains ‖ reference) as the penalty counts them; 0 without a reference."""
    clipped_low: Tensor
    """Tokens whose gradient the clip's lower bound removed."""
    clipped_high: Tensor
    """Tokens whose gradient an upper bound removed."""
    importance_weight: Tensor
    """Importance weights π_train / π_generation before truncation."""
    mismatch: Tensor
    """|log π_train − log π_generation|, in nats."""
    mismatched: Tensor
    """Tokens whose mismatch exceeds LOGPROB_MISMATCH_NATS."""
    importance_weight_max: Tensor
    """This and the following are maxima, not sums."""
    mismatch_max: Tensor

    @staticmethod
    def zero(device: torch.device) -> LossSums:
        return LossSums(*[torch.zeros((), dtype=torch.float64, device=device)] * len(LossSums._fields))

    def plus(self, other: LossSums) -> LossSums:
        sums = [mine + theirs for mine, theirs in zip(self.sums, other.sums, strict=True)]
        maxima = [torch.maximum(mine, theirs) for mine, theirs in zip(self.maxima, other.maxima, strict=True)]
        return LossSums(*sums, *maxima)

    @property
    def sums(self) -> tuple[Tensor, ...]:
        return self[:-_MAXIMA]

    @property
    def maxima(self) -> tuple[Tensor, ...]:
        return self[-_MAXIMA:]


_MAXIMA = 2
"""How many of the last LossSums are maxima."""


@dataclass(frozen=True, slots=True)
class GroupSums:
    """Sums over the prompt groups of a chunk or a step, including those that the loss masks."""

    groups: int = 0
    rollouts: int = 0
    reward: float = 0.0
    """Rewards of the verifier, before shaping."""
    staleness: int = 0
    """version − start_weight, summed over groups."""
    staleness_max: int = 0

    def plus(self, other: GroupSums) -> GroupSums:
        return GroupSums(
            self.groups + other.groups,
            self.rollouts + other.rollouts,
            self.reward + other.reward,
            self.staleness + other.staleness,
            max(self.staleness_max, other.staleness_max),
        )


class StepTotals(NamedTuple):
    """The sums of a step over all its chunks and all ranks, as numbers."""

    loss: float
    tokens: int
    sequences: int
    entropy: float
    kl: float
    reference_kl: float
    clipped_low: int
    clipped_high: int
    importance_weight: float
    mismatch: float
    mismatched: int
    groups: int
    rollouts: int
    reward: float
    staleness: int
    importance_weight_max: float
    mismatch_max: float
    staleness_max: int


_COUNTS = (
    "tokens", "sequences", "clipped_low", "clipped_high", "mismatched", "groups", "rollouts", "staleness",
    "staleness_max",
)  # fmt: skip


def total_over_ranks(loss: LossSums, groups: GroupSums, ranks: Ranks) -> StepTotals:
    """Add up over ranks and read the numbers off the device. A collective: every rank must call it."""

    def tensors(*numbers: float) -> list[Tensor]:
        return [torch.tensor(number, dtype=torch.float64, device=ranks.device) for number in numbers]

    of_groups = tensors(groups.groups, groups.rollouts, groups.reward, groups.staleness)
    sums = ranks.sum(torch.stack([*loss.sums, *of_groups])).tolist()
    maxima = ranks.maximum(torch.stack([*loss.maxima, *tensors(groups.staleness_max)])).tolist()
    totals = StepTotals(*sums, *maxima)
    return totals._replace(**{name: round(getattr(totals, name)) for name in _COUNTS})


def step_metrics(
    totals: StepTotals,
    *,
    version: int,
    loss_normaliser: int,
    grad_norm: float,
    lr: float,
    has_reference: bool,
    seconds: float,
) -> StepMetrics:
    """Divide the sums of a step. A step whose rollouts were all masked has zeros."""
    tokens = max(totals.tokens, 1)
    return StepMetrics(
        version=version,
        loss=totals.loss / max(loss_normaliser, 1),
        grad_norm=grad_norm,
        lr=lr,
        kl=totals.kl / tokens,
        reference_kl=totals.reference_kl / tokens if has_reference else None,
        entropy=totals.entropy / tokens,
        clip_fraction=(totals.clipped_low + totals.clipped_high) / tokens,
        clip_fraction_low=totals.clipped_low / tokens,
        clip_fraction_high=totals.clipped_high / tokens,
        importance_weight_mean=totals.importance_weight / tokens,
        importance_weight_max=totals.importance_weight_max,
        logprob_mismatch_mean=totals.mismatch / tokens,
        logprob_mismatch_max=totals.mismatch_max,
        logprob_mismatch_share=totals.mismatched / tokens,
        tokens=totals.tokens,
        sequences=totals.sequences,
        masked_sequences=totals.rollouts - totals.sequences,
        groups=totals.groups,
        reward=totals.reward / totals.rollouts,
        staleness_mean=totals.staleness / totals.groups,
        staleness_max=totals.staleness_max,
        seconds=seconds,
    )
