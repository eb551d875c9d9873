"""Advantages: how much better a rollout did than its siblings.

| baseline       | scale             | source |
| -------------- | ----------------- | ------ |
| group mean     | std of the group  | GRPO, arXiv:2402.03300 |
| group mean     | none              | Dr. GRPO, arXiv:2503.20783: dividing favours the easiest and hardest prompts |
| leave one out  | none              | RLOO, arXiv:2402.14740 |
| leave one out  | std of the others | NeMo-RL, whose keys these are |
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that rewards that differ by rounding only do not become ±1."""


def group_advantages(
    rewards: npt.NDArray[np.floating],
    *,
    normalize_rewards: bool,
    use_leave_one_out_baseline: bool,
) -> npt.NDArray[np.float64]:
    """Advantages within each prompt group.

    A rollout is compared with a set of rewards: those of its whole group, or with the leave-one-out baseline
    those of the others. A_i = r_i − mean of that set; with `normalize_rewards` divided by s + 1e-6, where s is
    the sample standard deviation of the same set (one less than its size in the denominator). It is not divided
    where s is 0: where the set's rewards are all equal, or the set has one. A group whose rewards are all equal
    gets exactly zero.

    Args:
        rewards: Shape (groups, siblings).
        normalize_rewards: Divide by the standard deviation of the rewards that a rollout is compared with.
        use_leave_one_out_baseline: Leave a rollout's own reward out of its baseline.

    Returns:
        Shape (groups, siblings). Computed in float64, each group on its own: the other groups of a chunk
        cannot move a bit of it.

    Raises:
        ValueError: The shape is not (groups, siblings), a reward is not finite, or the leave-one-out
            baseline is asked of groups of one.
    """
    if rewards.ndim != 2 or rewards.shape[1] == 0:
        raise ValueError(f"rewards have shape {rewards.shape}: they must be (groups, siblings), with siblings")
    if not np.isfinite(rewards).all():
        group, sibling = np.argwhere(~np.isfinite(rewards))[0]
        raise ValueError(
            f"the reward of sibling {sibling} of group {group} is {rewards[group, sibling]}: "
            "a verifier must return a finite number"
        )
    siblings = rewards.shape[1]
    if use_leave_one_out_baseline and siblings < 2:
        raise ValueError(
            "use_leave_one_out_baseline needs two siblings and a group has 1: "
            "set num_generations_per_prompt to 2 or more, or use_leave_one_out_baseline to false"
        )
    values = rewards.astype(np.float64)
    advantages: npt.NDArray[np.float64] = values - values.mean(axis=1, keepdims=True)
    # The mean of equal rewards may differ from them in the last bit.
    advantages[np.ptp(values, axis=1) == 0] = 0.0
    if use_leave_one_out_baseline:
        advantages *= siblings / (siblings - 1)
    if normalize_rewards:
        compared = _others(values) if use_leave_one_out_baseline else values[:, np.newaxis, :]
        deviation = _deviation(compared)
        np.divide(advantages, deviation + STD_EPSILON, out=advantages, where=deviation > 0)
    return advantages


def _others(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """For each sibling the rewards of the others, (groups, siblings, siblings − 1)."""
    return np.stack([np.delete(values, sibling, axis=1) for sibling in range(values.shape[1])], axis=1)


def _deviation(compared: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sample standard deviation along the last axis; exactly 0 for equal rewards, and for one alone."""
    if compared.shape[-1] < 2:
        return np.zeros(compared.shape[:-1])
    deviation: npt.NDArray[np.float64] = compared.std(axis=-1, ddof=1)
    deviation[np.ptp(compared, axis=-1) == 0] = 0.0
    return deviation
