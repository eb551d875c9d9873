"""What generation hands over: prompt groups to the trainer, receipts and evaluations to the controller.

Arrays are numpy, so that the object store shares them without a copy. They are read-only once published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One sibling of a prompt group: its prompt and the policy's turns.

    All arrays have the same length T, prompt included. `loss_mask` is true for the tokens that the policy sampled, and
    false for the prompt and for the environment's turns.
    """

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    """Log-probability of each sampled token under the weights that sampled it; 0 where loss_mask is false."""
    reward: float
    finished: bool
    """Whether it ended by itself; false if a length limit cut it off, in the policy's turn or the environment's."""

    @property
    def completion_tokens(self) -> int:
        return int(self.loss_mask.sum())


@dataclass(frozen=True, slots=True, eq=False)
class RolloutGroup:
    """A prompt group: `num_generations_per_prompt` rollouts of one prompt.

    `start_weight` is the version whose weights had last been synced when the attempt started, `end_weight` the same at
    its end.
    """

    prompt: int
    rollouts: tuple[Rollout, ...]
    start_weight: int
    end_weight: int


@dataclass(frozen=True, slots=True, eq=False)
class PackedGroup:
    """A prompt group in a few flat arrays, which are cheaper to copy than three a rollout."""

    prompt: int
    start_weight: int
    end_weight: int
    rewards: tuple[float, ...]
    finished: tuple[bool, ...]
    offsets: tuple[int, ...]
    """Rollout r has the elements from offsets[r] to offsets[r + 1]."""
    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]


def pack(group: RolloutGroup) -> PackedGroup:
    """A copy of the group in flat arrays."""
    rollouts = group.rollouts
    offsets = np.cumsum([0, *(len(rollout.token_ids) for rollout in rollouts)])
    return PackedGroup(
        prompt=group.prompt,
        start_weight=group.start_weight,
        end_weight=group.end_weight,
        rewards=tuple(rollout.reward for rollout in rollouts),
        finished=tuple(rollout.finished for rollout in rollouts),
        offsets=tuple(offsets.tolist()),
        token_ids=np.concatenate([rollout.token_ids for rollout in rollouts]),
        loss_mask=np.concatenate([rollout.loss_mask for rollout in rollouts]),
        logprobs=np.concatenate([rollout.logprobs for rollout in rollouts]),
    )


def unpack(packed: PackedGroup) -> RolloutGroup:
    """The group; its arrays are views of the packed ones."""
    places = [slice(begin, end) for begin, end in pairwise(packed.offsets)]
    rollouts = tuple(
        Rollout(packed.token_ids[place], packed.loss_mask[place], packed.logprobs[place], reward, finished)
        for place, reward, finished in zip(places, packed.rewards, packed.finished, strict=True)
    )
    return RolloutGroup(packed.prompt, rollouts, packed.start_weight, packed.end_weight)


@dataclass(frozen=True, slots=True)
class GroupReceipt:
    """The controller's record of a finished group; the rollouts themselves stay in the data plane."""

    prompt: int
    """The prompt's number in dataloader order."""
    worker: str
    start_weight: int
    end_weight: int
    rewards: tuple[float, ...]
    correct: tuple[bool, ...]
    completion_tokens: tuple[int, ...]
    finished: tuple[bool, ...]
    """Per rollout, false if the length limit cut it off."""
    repetition: tuple[float, ...]
    """Per rollout, the share of its 4-grams of sampled tokens that occurred in it before; 0 if it has none."""
    generation_s: float
    """Seconds from the start of the attempt to its last token."""
    reward_s: float
    """Seconds that scoring took."""
    parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The parts of each reward, by name (`Verdict.parts`)."""

    @property
    def zero_variance(self) -> bool:
        """Whether all rewards are equal, so that the group has no advantage (dynamic sampling, arXiv:2503.14476)."""
        return len(set(self.rewards)) <= 1

    @property
    def reward_mean(self) -> float:
        return sum(self.rewards) / len(self.rewards)

    @property
    def reward_std(self) -> float:
        """Standard deviation of the siblings' rewards, over the population."""
        mean = self.reward_mean
        return float((sum((reward - mean) ** 2 for reward in self.rewards) / len(self.rewards)) ** 0.5)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The policy's accuracy on some prompts. `start_weight` and `end_weight` differ if weights were synced then."""

    accuracy: float
    """Share of rollouts that are correct; one without a verdict is not."""
    mean_reward: float
    """A rollout without a verdict has reward 0."""
    prompts: int
    rollouts: int
    start_weight: int
    end_weight: int
    without_verdict: int = 0
    """Rollouts whose verifier failed."""
    first_failure: str | None = None
    """Why the first of them has no verdict, with file and line of its data."""
    notices: tuple[str, ...] = ()
    """Messages of reward workers."""
