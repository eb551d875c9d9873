"""What generation hands over: prompt groups to the trainer, receipts and evaluations to the controller.

Arrays are numpy, so that the object store shares them without a copy. They are read-only once published.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from runtime.files import Json
from runtime.tasks.base import Rated, Verdict

KINDS_KEPT = 16
"""Most kinds of failures that a validation tells."""


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
    """The parts of each reward, by name (`Verdict.parts`); 0 where a verdict lacks one."""
    distinct: int | None = None
    """How many of its completions differ; None if nobody has counted."""
    samples: tuple[Json, ...] = ()
    """What some of its rollouts said: lines of samples.jsonl as far as they are known (`runtime.samples`)."""

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


def kind_of_failure(why: str) -> str:
    """A failure without its data: equal for two prompts that fail in the same way."""
    happened, _, _ = why.partition(" for the completion ")
    happened = re.sub(r"^\S*?:\d+: ", "", happened)  # the data's file and line
    return re.sub(r"(?<=[^\w:])\d[\w.]*", "#", re.sub(r"'[^']*'", "'…'", happened))


def one_of_each_kind(failures: Iterable[str]) -> tuple[str, ...]:
    """The first failure of each kind, in order, at most KINDS_KEPT."""
    kinds: dict[str, str] = {}
    for why in failures:
        kinds.setdefault(kind_of_failure(why), why)
    return tuple(kinds.values())[:KINDS_KEPT]


def columns_of(parts: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, ...]]:
    """The parts of rewards by name: a number a rollout, 0 where it lacks the part."""
    names = dict.fromkeys(name for named in parts for name in named)
    return {name: tuple(named.get(name, 0.0) for named in parts) for name in names}


@dataclass(frozen=True, slots=True)
class HeldOutRollout:
    """A rollout of an evaluation. It is measured, never trained on."""

    verdict: Rated
    tokens: int
    """How many tokens the policy sampled, over all turns."""
    finished: bool
    """False if a length limit cut it off."""
    turns: tuple[str, ...] = ()
    """The policy's texts; empty where they are not kept."""

    @property
    def correct(self) -> bool:
        """A rollout without a verdict is not."""
        return isinstance(self.verdict, Verdict) and self.verdict.correct


@dataclass(frozen=True, slots=True)
class HeldOutPrompt:
    """A prompt of an evaluation, with its rollouts in the order of siblings."""

    index: int
    """Its number in the set."""
    rollouts: tuple[HeldOutRollout, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The policy measured on some prompts. `start_weight` and `end_weight` differ if weights were synced then."""

    prompts: tuple[HeldOutPrompt, ...]
    """In the order of their numbers."""
    start_weight: int
    end_weight: int
    notices: tuple[str, ...] = ()
    """Messages of reward workers."""

    @property
    def rollouts(self) -> tuple[HeldOutRollout, ...]:
        return tuple(rollout for prompt in self.prompts for rollout in prompt.rollouts)

    @property
    def accuracy(self) -> float:
        """The share of rollouts that are correct."""
        return sum(rollout.correct for rollout in self.rollouts) / len(self.rollouts)

    @property
    def mean_reward(self) -> float:
        """Of the rollouts that have a verdict; 0 if none has."""
        rewards = [rollout.verdict.reward for rollout in self.rollouts if isinstance(rollout.verdict, Verdict)]
        return sum(rewards) / max(1, len(rewards))

    @property
    def failures(self) -> tuple[str, ...]:
        """Why rollouts have no verdict, with file and line of their data: one reason a rollout."""
        return tuple(rollout.verdict for rollout in self.rollouts if isinstance(rollout.verdict, str))

    @property
    def failures_of_each_kind(self) -> tuple[str, ...]:
        """The first of each kind (`one_of_each_kind`)."""
        return one_of_each_kind(self.failures)

    def without_turns(self) -> "Evaluation":
        """The same without texts, which only files need."""
        prompts = tuple(
            replace(prompt, rollouts=tuple(replace(rollout, turns=()) for rollout in prompt.rollouts))
            for prompt in self.prompts
        )
        return replace(self, prompts=prompts)


def joined(parts: "Sequence[Evaluation]") -> "Evaluation":
    """Evaluations of parts of a set as one."""
    return Evaluation(
        prompts=tuple(sorted((prompt for part in parts for prompt in part.prompts), key=lambda prompt: prompt.index)),
        start_weight=min(part.start_weight for part in parts),
        end_weight=max(part.end_weight for part in parts),
        notices=tuple(notice for part in parts for notice in part.notices),
    )
