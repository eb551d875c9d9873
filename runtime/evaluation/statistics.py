"""Shares, means, medians and pass@k with 95% confidence intervals.

Rollouts of one prompt resemble one another, so they are not so many independent observations: a prompt is. Every
interval here is over prompts (a cluster each), as in Miller, "Adding Error Bars to Evals" (arXiv:2411.00640). All
prompts have the same number of rollouts.

    share   Wilson's interval (JASA 22, 1927), for as many independent rollouts as would vary as much as these do
            (Kish's effective sample size); never fewer than there are prompts, nor more than there are rollouts
    mean    normal, with the standard error clustered by prompt; values may be missing
    median  Woodruff's (JASA 47, 1952): the quantiles at the bounds of the share of values up to the median
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Z = 1.959964
"""The normal deviate of a two-sided 95% interval."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the bounds of its 95% confidence interval."""

    value: float
    low: float
    high: float

    def as_json(self) -> dict[str, float | None]:
        """Bounds that are infinite are null."""
        low, high = (bound if math.isfinite(bound) else None for bound in (self.low, self.high))
        return {"value": self.value, "low": low, "high": high}


def share(per_prompt: Floats, rollouts_per_prompt: int) -> Estimate:
    """The mean of values in [0, 1], one a prompt, such as its share of correct rollouts. Shape (prompts,)."""
    prompts = len(per_prompt)
    value = float(per_prompt.mean())
    variance = float(per_prompt.var()) / prompts
    effective = value * (1 - value) / variance if variance > 0 else math.inf
    if value in (0.0, 1.0):
        effective = prompts
    return _wilson(value, min(max(effective, prompts), prompts * rollouts_per_prompt))


def _wilson(value: float, count: float) -> Estimate:
    shrunk = 1 + _Z**2 / count
    middle = (value + _Z**2 / (2 * count)) / shrunk
    half = _Z / shrunk * math.sqrt(value * (1 - value) / count + _Z**2 / (4 * count**2))
    return Estimate(value, max(min(middle - half, value), 0.0), min(max(middle + half, value), 1.0))


def mean(values: Floats) -> Estimate:
    """The mean of values of shape (prompts, rollouts), without those that are NaN; 0 if all are.

    A single prompt gives no interval: its bounds are infinite.
    """
    there = ~np.isnan(values)
    prompts, count = int(there.any(axis=1).sum()), int(there.sum())
    value = float(values[there].mean()) if count else 0.0
    if prompts < 2:
        return Estimate(value, -math.inf, math.inf)
    by_prompt = np.where(there, values - value, 0.0).sum(axis=1)
    half = _Z * math.sqrt(prompts / (prompts - 1) * float((by_prompt**2).sum())) / count
    return Estimate(value, value - half, value + half)


def median(values: Floats) -> Estimate:
    """The median of values of shape (prompts, rollouts)."""
    value = float(np.median(values))
    below = share((values <= value).mean(axis=1), values.shape[1])
    half = max(below.value - below.low, below.high - below.value)
    low, high = np.quantile(values, [max(0.5 - half, 0.0), min(0.5 + half, 1.0)])
    return Estimate(value, float(min(low, value)), float(max(high, value)))


def pass_at_k(correct: Sequence[int], rollouts: int, k: int) -> Floats:
    """Per prompt, the chance that at least one of k of its rollouts is correct, drawn without replacement.

    The unbiased estimator of Chen et al. (arXiv:2107.03374): 1 - C(n - c, k) / C(n, k), for c correct ones of n.
    Raises ValueError if k is above `rollouts`.
    """
    if not 1 <= k <= rollouts:
        raise ValueError(f"pass@{k} of {rollouts} rollouts a prompt: k is at least 1, and at most the rollouts")
    ways = math.comb(rollouts, k)
    return np.array([1 - math.comb(rollouts - right, k) / ways for right in correct], dtype=np.float64)


def orders_of_pass(rollouts: int) -> list[int]:
    """The k of pass@k that are reported: powers of two, and the number of rollouts itself."""
    powers = [2**power for power in range(rollouts.bit_length()) if 2**power <= rollouts]
    return sorted({*powers, rollouts})
