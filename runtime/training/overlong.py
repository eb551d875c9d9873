"""Rollouts that are too long (DAPO, arXiv:2503.14476, section 3.4)."""

from __future__ import annotations

from runtime.groups import Rollout, RolloutGroup
from runtime.training.config import LossConfig, RewardShapingConfig


def soft_overlong_punishment(completion_tokens: int, shaping: RewardShapingConfig) -> float:
    """What is added to the reward of a rollout for its length: DAPO's equation 13 times the penalty.

    0 up to `max_response_length − overlong_buffer_length` sampled tokens, then falling linearly to
    −overlong_buffer_penalty at `max_response_length`, and that beyond.
    """
    start = shaping.max_response_length - shaping.overlong_buffer_length
    excess = min(max(completion_tokens - start, 0), shaping.overlong_buffer_length)
    return -shaping.overlong_buffer_penalty * excess / shaping.overlong_buffer_length


def shaped_rewards(group: RolloutGroup, config: LossConfig) -> list[float]:
    """The rewards that the advantages of a group are made of, one a sibling."""
    shaping = config.reward_shaping
    if shaping is None:
        return [rollout.reward for rollout in group.rollouts]
    return [rollout.reward + soft_overlong_punishment(rollout.completion_tokens, shaping) for rollout in group.rollouts]


def in_the_loss(rollout: Rollout, config: LossConfig) -> bool:
    """Whether a rollout is trained on: with `overlong_filtering`, only if it ended by itself."""
    return rollout.finished or not config.overlong_filtering
