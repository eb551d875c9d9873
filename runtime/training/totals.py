"""What a step adds up while its chunks are trained, and the metrics made of it when it is finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.training.ranks import Ranks
from runtime.training.step_metrics import StepMetrics


@dataclass(frozen=True, slots=True, eq=False)
class LossSums:
    """Sums over the trained tokens of a microbatch, a chunk or a step.

    Scalars, float64, on the model's device: they stay tensors until the step is finished, so that a GPU is
    not waited for after each microbatch.
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
    clipped: Tensor
    """Tokens whose gradient the clip took away."""
    importance_weight: Tensor
    """Importance weights π_train / π_generation before truncation."""
    importance_weight_max: Tensor
    """The largest of them: a maximum, not a sum."""

    @staticmethod
    def zero(device: torch.device) -> LossSums:
        """The sums of nothing."""
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return LossSums(zero, zero, zero, zero, zero, zero, zero, zero, zero)

    def plus(self, other: LossSums) -> LossSums:
        """Both together."""
        return LossSums(
            loss=self.loss + other.loss,
            tokens=self.tokens + other.tokens,
            sequences=self.sequences + other.sequences,
            entropy=self.entropy + other.entropy,
            kl=self.kl + other.kl,
            reference_kl=self.reference_kl + other.reference_kl,
            clipped=self.clipped + other.clipped,
            importance_weight=self.importance_weight + other.importance_weight,
            importance_weight_max=torch.maximum(self.importance_weight_max, other.importance_weight_max),
        )


@dataclass(frozen=True, slots=True)
class GroupSums:
    """Sums over the prompt groups of a chunk or a step, those that the loss masks included."""

    groups: int = 0
    rollouts: int = 0
    reward: float = 0.0
    """Rewards as the verifier gave them, before shaping."""
    staleness: int = 0
    """version − start_weight, added up over groups."""
    staleness_max: int = 0

    def plus(self, other: GroupSums) -> GroupSums:
        """Both together."""
        return GroupSums(
            groups=self.groups + other.groups,
            rollouts=self.rollouts + other.rollouts,
            reward=self.reward + other.reward,
            staleness=self.staleness + other.staleness,
            staleness_max=max(self.staleness_max, other.staleness_max),
        )


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What a step added up over all its chunks and all ranks, as numbers."""

    loss: float
    tokens: int
    sequences: int
    entropy: float
    kl: float
    reference_kl: float
    clipped: int
    importance_weight: float
    importance_weight_max: float
    groups: int
    rollouts: int
    reward: float
    staleness: int
    staleness_max: int


def total_over_ranks(loss: LossSums, groups: GroupSums, ranks: Ranks) -> StepTotals:
    """Add up over ranks and read the numbers off the device. A collective: every rank must call it."""
    sums = _numbers(
        ranks.sum,
        ranks.device,
        loss.loss.item(),
        loss.tokens.item(),
        loss.sequences.item(),
        loss.entropy.item(),
        loss.kl.item(),
        loss.reference_kl.item(),
        loss.clipped.item(),
        loss.importance_weight.item(),
        groups.groups,
        groups.rollouts,
        groups.reward,
        groups.staleness,
    )
    maxima = _numbers(ranks.maximum, ranks.device, loss.importance_weight_max.item(), groups.staleness_max)
    return StepTotals(
        loss=sums[0],
        tokens=round(sums[1]),
        sequences=round(sums[2]),
        entropy=sums[3],
        kl=sums[4],
        reference_kl=sums[5],
        clipped=round(sums[6]),
        importance_weight=sums[7],
        importance_weight_max=maxima[0],
        groups=round(sums[8]),
        rollouts=round(sums[9]),
        reward=sums[10],
        staleness=round(sums[11]),
        staleness_max=round(maxima[1]),
    )


def _numbers(reduce: Callable[[Tensor], Tensor], device: torch.device, *mine: float) -> list[float]:
    """This rank's numbers, reduced over ranks."""
    reduced: list[float] = reduce(torch.tensor(mine, dtype=torch.float64, device=device)).tolist()
    return reduced


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
    """Divide what a step added up; a step whose rollouts were all masked has zeros."""
    tokens = max(totals.tokens, 1)
    return StepMetrics(
        version=version,
        loss=totals.loss / max(loss_normaliser, 1),
        grad_norm=grad_norm,
        lr=lr,
        kl=totals.kl / tokens,
        reference_kl=totals.reference_kl / tokens if has_reference else None,
        entropy=totals.entropy / tokens,
        clip_fraction=totals.clipped / tokens,
        importance_weight_mean=totals.importance_weight / tokens,
        importance_weight_max=totals.importance_weight_max,
        tokens=totals.tokens,
        sequences=totals.sequences,
        masked_sequences=totals.rollouts - totals.sequences,
        groups=totals.groups,
        reward=totals.reward / totals.rollouts,
        staleness_mean=totals.staleness / totals.groups,
        staleness_max=totals.staleness_max,
        seconds=seconds,
    )
