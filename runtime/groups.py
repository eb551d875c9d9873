"""What a generation worker hands to the trainer: a prompt group and its rollouts.

Arrays are numpy, so that the object store shares them without a copy. They are read-only once published.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One sibling of a prompt group: the prompt and what the policy made of it.

    All arrays have the same length T, prompt included. `loss_mask` is true for the tokens that the policy
    sampled (not for the prompt, nor for what an environment inserted between turns).
    """

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    """Log-probability of each sampled token under the weights that sampled it; 0 where loss_mask is false."""
    reward: float
    finished: bool
    """It ended by itself; false where a length limit cut it off, in the policy's turn or before the environment's."""

    @property
    def completion_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """A prompt group: `num_generations_per_prompt` rollouts of one prompt.

    `start_weight` is the version whose weights had last been synced when the attempt started, `end_weight`
    the same at its end; they differ when weights were synced in between.
    """

    prompt: int
    rollouts: tuple[Rollout, ...]
    start_weight: int
    end_weight: int

    @property
    def rewards(self) -> npt.NDArray[np.float32]:
        """The rewards of the siblings, shape (num_generations_per_prompt,)."""
        return np.array([rollout.reward for rollout in self.rollouts], dtype=np.float32)

    @property
    def zero_variance(self) -> bool:
        """All rewards are equal: the group carries no advantage (dynamic sampling, DAPO, arXiv:2503.14476)."""
        rewards = self.rewards
        return bool((rewards == rewards[0]).all())


@dataclass(frozen=True, slots=True)
class GroupReceipt:
    """What the controller learns of a finished group; the rollouts themselves stay in the data plane."""

    prompt: int
    """The prompt's number in dataloader order."""
    worker: str
    """The generation worker that made it."""
    start_weight: int
    end_weight: int
    rewards: tuple[float, ...]
    correct: tuple[bool, ...]
    completion_tokens: tuple[int, ...]
    finished: tuple[bool, ...]
    """Per rollout, false where the length limit cut it off."""
    generation_s: float
    """Seconds from the start of the attempt to its last token."""
    reward_s: float
    """Seconds that scoring took."""

    @property
    def zero_variance(self) -> bool:
        """All rewards are equal."""
        return len(set(self.rewards)) <= 1

    @property
    def reward_mean(self) -> float:
        """Mean reward of the siblings."""
        return sum(self.rewards) / len(self.rewards)

    @property
    def reward_std(self) -> float:
        """Standard deviation of the siblings' rewards, over the population."""
        mean = self.reward_mean
        return float((sum((reward - mean) ** 2 for reward in self.rewards) / len(self.rewards)) ** 0.5)
