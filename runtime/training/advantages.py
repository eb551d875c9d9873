"""Advantages: how much better a rollout is than its siblings.

| baseline       | scale             | source |
| -------------- | ----------------- | ------ |
| group mean     | std of the group  | GRPO, arXiv:2402.03300 |
| group mean     | none              | Dr. GRPO, arXiv:2503.20783: dividing favours the easiest and hardest prompts |
| leave one out  | none              | RLOO, arXiv:2402.14740 |
| leave one out  | std of the others | NeMo-RL, whose keys these are |
"""

import numpy as np
import numpy.typing as npt

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that rewards that differ only by rounding do not become ±1."""


@np.errstate(over="ignore", invalid="ignore")
def group_advantages(
    rewards: npt.NDArray[np.floating], *, normalize_rewards: bool, use_leave_one_out_baseline: bool
) -> npt.NDArray[np.float64]:
    """Advantages within each prompt group, from and to shape (groups, siblings), in float64.

    A rollout is compared with the rewards of its group, or with `use_leave_one_out_baseline` of the others: A_i = r_i −
    their mean. With `normalize_rewards` it is divided by s + 1e-6, where s is their sample standard deviation (size − 1
    in the denominator), unless s is 0: because they are all equal, or only one. A group of equal rewards gets exactly
    zero. The other groups of a chunk do not change a bit of the result. Rewards so large that float64 cannot hold the
    square of their differences have advantages that are not finite.

    Raises ValueError for another shape, a reward that is not finite, or a leave-one-out baseline in groups of one.
    """
    if rewards.ndim != 2 or rewards.shape[1] == 0:
        raise ValueError(f"rewards have shape {rewards.shape}: they must be (groups, at least one sibling)")
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
        compared = values[:, np.newaxis, :]
        if use_leave_one_out_baseline:  # for each sibling the rewards of the others, (groups, siblings, siblings − 1)
            compared = np.stack([np.delete(values, sibling, axis=1) for sibling in range(siblings)], axis=1)
        deviation = _deviation(compared)
        np.divide(advantages, deviation + STD_EPSILON, out=advantages, where=deviation > 0)
        advantages[~np.isfinite(np.broadcast_to(deviation, advantages.shape))] = np.nan
    return advantages


def _deviation(compared: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sample standard deviation along the last axis; exactly 0 for equal rewards, and for a single one."""
    if compared.shape[-1] < 2:
        return np.zeros(compared.shape[:-1])
    deviation: npt.NDArray[np.float64] = compared.std(axis=-1, ddof=1)
    deviation[np.ptp(compared, axis=-1) == 0] = 0.0
    return deviation
