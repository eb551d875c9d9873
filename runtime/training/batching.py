"""From prompt groups to padded microbatches within a token budget.

The same groups in the same order always give the same microbatches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from runtime.groups import Rollout, RolloutGroup
from runtime.training.advantages import group_advantages
from runtime.training.config import LossConfig, RewardShapingConfig
from runtime.wording import counted

PAD_TOKEN = 0
"""Fills the tail of short rows. It is neither attended to nor trained on, so it may be any token."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSequence:
    """A rollout and its advantage, which all its tokens share."""

    rollout: Rollout
    advantage: float
    prompt: int


@dataclass(frozen=True, slots=True, eq=False)
class Microbatch:
    """Rollouts of one forward and backward pass, padded on the right to T tokens.

    Column t of every array belongs to token t, as in `Rollout`. Column 0 is never trained on.
    """

    token_ids: Tensor
    """int64, (sequences, T)."""
    attention_mask: Tensor
    """int64, (sequences, T): 1 for tokens, 0 for padding."""
    loss_mask: Tensor
    """bool, (sequences, T): the sampled tokens."""
    generation_logprobs: Tensor
    """float32, (sequences, T): under the weights that sampled; 0 where loss_mask is false."""
    advantages: Tensor
    """float32, (sequences,)."""
    prompts: Tensor
    """int64, (sequences,): whose rollout a row is; -1 for padding."""

    def to(self, device: torch.device) -> "Microbatch":
        return Microbatch(*(getattr(self, each.name).to(device) for each in fields(self)))


def check_rollout(rollout: Rollout, *, where: str, max_total_sequence_length: int, vocabulary: int) -> None:
    """Raise ValueError for a rollout that cannot be trained on.

    where: its name in the message, as in "rollout 3 of prompt 17". vocabulary: the number of tokens the model knows.
    """
    tokens = len(rollout.token_ids)
    if not tokens == len(rollout.loss_mask) == len(rollout.logprobs):
        raise ValueError(
            f"{where} has {tokens} token_ids, {len(rollout.loss_mask)} loss_mask and {len(rollout.logprobs)} "
            "logprobs: the generation engine must return one of each a token"
        )
    if tokens > max_total_sequence_length:
        raise ValueError(
            f"{where} has {counted(tokens, 'token')}, more than policy.max_total_sequence_length = "
            f"{max_total_sequence_length}: raise it, or lower the generation limit"
        )
    if not rollout.loss_mask.any():
        raise ValueError(f"{where} has no sampled token: leave room for at least one after the prompt")
    if rollout.loss_mask[0]:
        raise ValueError(f"{where} has a sampled token without a context: start its prompt with at least one token")
    if rollout.token_ids.min() < 0 or rollout.token_ids.max() >= vocabulary:
        raise ValueError(
            f"{where} has tokens from {rollout.token_ids.min()} to {rollout.token_ids.max()}, but the model "
            f"knows 0 to {vocabulary - 1}: generate and train with the same tokenizer and model"
        )
    if not np.isfinite(rollout.logprobs[rollout.loss_mask]).all():
        raise ValueError(f"{where} has a log-probability that is not finite: the engine must return finite ones")


def training_sequences(
    groups: Sequence[RolloutGroup], config: LossConfig, *, max_total_sequence_length: int, vocabulary: int
) -> list[TrainingSequence]:
    """The rollouts of whole groups that are trained on, with their advantages.

    Shapes rewards, computes advantages within each group, and leaves out the rollouts that overlong filtering masks, in
    this order: a masked rollout still counts in the baseline of its siblings.

    Raises ValueError if a rollout cannot be trained on (`check_rollout`) or a group has no usable rewards.
    """
    sequences = []
    for group in groups:
        for number, rollout in enumerate(group.rollouts):
            check_rollout(
                rollout,
                where=f"rollout {number} of prompt {group.prompt}",
                max_total_sequence_length=max_total_sequence_length,
                vocabulary=vocabulary,
            )
        sequences += [
            TrainingSequence(rollout, advantage, group.prompt)
            for rollout, advantage in zip(group.rollouts, advantages_of(group, config), strict=True)
            if in_the_loss(rollout, config)
        ]
    return sequences


def plan_microbatches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Cut sequences into microbatches of at most `token_budget` tokens (rows × longest row).

    Sequences are taken from longest to shortest (ties in order), and each microbatch is filled before the next begins:
    rows of similar length share one, so that little is padding.

    Returns for each microbatch its indices into `lengths`. Raises ValueError if a single sequence exceeds the budget.
    """
    plan: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if lengths[index] > token_budget:
            raise ValueError(
                f"sequence {index} has {counted(lengths[index], 'token')}, more than the budget of {token_budget}: "
                "raise policy.train_microbatch_tokens"
            )
        if plan and (len(plan[-1]) + 1) * longest <= token_budget:
            plan[-1].append(index)
        else:
            plan.append([index])
            longest = lengths[index]
    return plan


def pad(sequences: Sequence[TrainingSequence]) -> "Microbatch":
    """Put sequences into one microbatch, padded on the right to the longest."""
    shape = (len(sequences), max(len(sequence.rollout.token_ids) for sequence in sequences))
    token_ids = np.full(shape, PAD_TOKEN, dtype=np.int64)
    attention_mask = np.zeros(shape, dtype=np.int64)
    loss_mask = np.zeros(shape, dtype=np.bool_)
    logprobs = np.zeros(shape, dtype=np.float32)
    for row, sequence in enumerate(sequences):
        rollout = sequence.rollout
        tokens = len(rollout.token_ids)
        token_ids[row, :tokens] = rollout.token_ids
        attention_mask[row, :tokens] = 1
        loss_mask[row, :tokens] = rollout.loss_mask
        logprobs[row, :tokens] = np.where(rollout.loss_mask, rollout.logprobs, 0.0)
    return Microbatch(
        token_ids=torch.from_numpy(token_ids),
        attention_mask=torch.from_numpy(attention_mask),
        loss_mask=torch.from_numpy(loss_mask),
        generation_logprobs=torch.from_numpy(logprobs),
        advantages=torch.tensor([sequence.advantage for sequence in sequences], dtype=torch.float32),
        prompts=torch.tensor([sequence.prompt for sequence in sequences], dtype=torch.int64),
    )


def microbatches(sequences: Sequence[TrainingSequence], token_budget: int) -> "list[Microbatch]":
    """Pack sequences by length into padded microbatches of at most `token_budget` tokens."""
    lengths = [len(sequence.rollout.token_ids) for sequence in sequences]
    return [pad([sequences[index] for index in plan]) for plan in plan_microbatches(lengths, token_budget)]


def empty_microbatch() -> "Microbatch":
    """One row of padding that trains nothing, for a rank with fewer microbatches than others."""
    return Microbatch(
        token_ids=torch.full((1, 2), PAD_TOKEN),
        attention_mask=torch.ones((1, 2), dtype=torch.int64),
        loss_mask=torch.zeros((1, 2), dtype=torch.bool),
        generation_logprobs=torch.zeros((1, 2)),
        advantages=torch.zeros(1),
        prompts=torch.tensor([-1]),
    )


def soft_overlong_punishment(completion_tokens: int, shaping: RewardShapingConfig) -> float:
    """The addition to a rollout's reward for its length: DAPO's equation 13 times the penalty.

    0 up to `max_response_length − overlong_buffer_length` sampled tokens, then falling linearly to
    −overlong_buffer_penalty at `max_response_length`, and constant beyond.
    """
    start = shaping.max_response_length - shaping.overlong_buffer_length
    excess = min(max(completion_tokens - start, 0), shaping.overlong_buffer_length)
    return -shaping.overlong_buffer_penalty * excess / shaping.overlong_buffer_length


def advantages_of(group: RolloutGroup, config: LossConfig) -> list[float]:
    """The advantage of each sibling, also of those that are left out of the loss. Raises as `group_advantages` does."""
    advantages = group_advantages(
        np.array([shaped_rewards(group, config)]),
        normalize_rewards=config.normalize_rewards,
        use_leave_one_out_baseline=config.use_leave_one_out_baseline,
    )
    return [float(advantage) for advantage in advantages[0]]


def shaped_rewards(group: RolloutGroup, config: LossConfig) -> list[float]:
    """The rewards that a group's advantages are computed from, one a sibling."""
    shaping = config.reward_shaping
    if shaping is None:
        return [rollout.reward for rollout in group.rollouts]
    return [rollout.reward + soft_overlong_punishment(rollout.completion_tokens, shaping) for rollout in group.rollouts]


def in_the_loss(rollout: Rollout, config: LossConfig) -> bool:
    """Whether a rollout is trained on: with `overlong_filtering`, only if it ended by itself."""
    return rollout.finished or not config.overlong_filtering
