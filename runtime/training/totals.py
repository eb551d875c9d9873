"""Sums that a step collects while its chunks are trained."""

from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from runtime.training.ranks import Ranks

Number = TypeVar("Number", Tensor, float)


class StepSums(NamedTuple, Generic[Number]):
    """Sums over the trained tokens, and over the prompt groups, of a microbatch, a chunk or a step.

    Until the step is finished they are tensors (scalars, float64, on the model's device), so that no microbatch waits
    for a GPU; then numbers.
    """

    loss: Number
    """The undivided loss."""
    tokens: Number
    sequences: Number
    entropy: Number
    """In nats."""
    kl: Number
    """k3 estimates of KL(generating policy ‖ policy that trains)."""
    reference_kl: Number
    """Estimates of KL(policy that trains ‖ reference) as the penalty counts them; 0 without a reference."""
    clipped_low: Number
    """Tokens whose gradient the clip's lower bound removed."""
    clipped_high: Number
    """Tokens whose gradient an upper bound removed."""
    importance_weight: Number
    """Importance weights π_train / π_generation before truncation."""
    mismatch: Number
    """|log π_train − log π_generation|, in nats."""
    mismatched: Number
    """Tokens whose mismatch exceeds LOGPROB_MISMATCH_NATS."""
    groups: Number
    """Of these and the next, the loss may mask some."""
    rollouts: Number
    reward: Number
    """Rewards of the verifier, before shaping."""
    staleness: Number
    """version − start_weight, summed over groups."""
    importance_weight_max: Number
    """A maximum, like the next two, not a sum."""
    mismatch_max: Number
    staleness_max: Number


_MAXIMA = 3
"""How many of the last StepSums are maxima."""


def no_sums(device: torch.device) -> StepSums[Tensor]:
    """Zeros."""
    return StepSums(*[torch.zeros((), dtype=torch.float64, device=device)] * len(StepSums._fields))


def added(one: StepSums[Tensor], other: StepSums[Tensor]) -> StepSums[Tensor]:
    """The sums of both."""
    pairs = list(zip(one, other, strict=True))
    return StepSums(
        *(mine + theirs for mine, theirs in pairs[:-_MAXIMA]), *(torch.maximum(*pair) for pair in pairs[-_MAXIMA:])
    )


def total_over_ranks(sums: StepSums[Tensor], ranks: Ranks) -> StepSums[float]:
    """Add up over ranks and read the numbers off the device. A collective: every rank must call it."""
    totals = ranks.sum(torch.stack(sums[:-_MAXIMA])).tolist()
    return StepSums(*totals, *ranks.maximum(torch.stack(sums[-_MAXIMA:])).tolist())
