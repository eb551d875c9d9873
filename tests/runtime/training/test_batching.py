from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.groups import Rollout
from runtime.training.advantages import group_advantages
from runtime.training.batching import (
    check_rollout,
    empty_microbatch,
    microbatches,
    plan_microbatches,
    soft_overlong_punishment,
    training_sequences,
)
from runtime.training.config import LossConfig, RewardShapingConfig
from runtime.training.ranks import share_of_rank
from tests.runtime.training.helpers import VOCABULARY, make_groups

LIMITS = {"max_total_sequence_length": 24, "vocabulary": VOCABULARY}


@given(lengths=st.lists(st.integers(1, 30), max_size=40), budget=st.integers(30, 200))
def test_a_plan_has_every_sequence_once_and_keeps_the_budget(lengths: list[int], budget: int) -> None:
    plan = plan_microbatches(lengths, budget)
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[index] for index in batch) <= budget for batch in plan)
    assert plan == plan_microbatches(lengths, budget)


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), budget=st.integers(30, 200))
def test_no_two_neighbouring_microbatches_of_a_plan_could_be_one(lengths: list[int], budget: int) -> None:
    plan = plan_microbatches(lengths, budget)
    for batch, following in pairwise(plan):
        assert (len(batch) + 1) * max(lengths[index] for index in batch) > budget
        assert min(lengths[i] for i in batch) >= max(lengths[i] for i in following)


def test_a_sequence_longer_than_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="sequence 1 has 9 tokens, more than the budget of 8"):
        plan_microbatches([3, 9], 8)


def test_padded_rows_hold_the_rollouts_and_nothing_else() -> None:
    sequences = training_sequences(make_groups(3, seed=1), LossConfig(), **LIMITS)
    remaining = list(sequences)
    for batch in microbatches(sequences, 64):
        assert batch.token_ids.numel() <= 64
        for row in range(len(batch.advantages)):
            tokens = int(batch.attention_mask[row].sum())
            assert not batch.attention_mask[row, tokens:].any()
            assert not batch.loss_mask[row, tokens:].any()
            assert not batch.generation_logprobs[row, tokens:].any()
            found = next(
                sequence
                for sequence in remaining
                if np.array_equal(sequence.rollout.token_ids, batch.token_ids[row, :tokens].numpy())
            )
            remaining = [sequence for sequence in remaining if sequence is not found]
            np.testing.assert_array_equal(batch.loss_mask[row, :tokens].numpy(), found.rollout.loss_mask)
            np.testing.assert_array_equal(batch.generation_logprobs[row, :tokens].numpy(), found.rollout.logprobs)
            assert batch.advantages[row].item() == pytest.approx(found.advantage)
    assert remaining == []


def test_read_only_arrays_from_the_object_store_are_taken_without_a_warning() -> None:
    groups = make_groups(1, seed=1)
    for rollout in groups[0].rollouts:
        rollout.token_ids.flags.writeable = False
        rollout.logprobs.flags.writeable = False
    (batch,) = microbatches(training_sequences(groups, LossConfig(), **LIMITS), 1000)
    batch.token_ids.add_(0)


def test_a_filtered_rollout_is_left_out_but_counts_in_the_baseline_of_its_siblings() -> None:
    groups = make_groups(2, seed=3)
    kept = training_sequences(groups, LossConfig(overlong_filtering=True), **LIMITS)
    everything = training_sequences(groups, LossConfig(), **LIMITS)
    assert len(everything) == 8
    finished = [sequence for sequence in everything if sequence.rollout.finished]
    assert [id(sequence.rollout) for sequence in kept] == [id(sequence.rollout) for sequence in finished]
    assert [sequence.advantage for sequence in kept] == [sequence.advantage for sequence in finished]
    assert len(kept) == 6


def test_rewards_are_shaped_before_the_advantages() -> None:
    (group,) = make_groups(1, seed=3, rewards=[1.0, 0.0, 1.0, 0.0])
    shaping = RewardShapingConfig(max_response_length=8, overlong_buffer_length=8)
    sequences = training_sequences([group], LossConfig(reward_shaping=shaping), **LIMITS)
    shaped = [
        rollout.reward + soft_overlong_punishment(rollout.completion_tokens, shaping) for rollout in group.rollouts
    ]
    expected = group_advantages(np.array([shaped]), normalize_rewards=True, use_leave_one_out_baseline=False)
    assert [sequence.advantage for sequence in sequences] == expected[0].tolist()


GOOD = Rollout(
    token_ids=np.array([1, 2, 3], np.int32),
    loss_mask=np.array([False, True, True]),
    logprobs=np.array([0.0, -1.0, -2.0], np.float32),
    reward=1.0,
    finished=True,
)


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        (replace(GOOD, logprobs=np.zeros(2, np.float32)), "has 3 token_ids, 3 loss_mask and 2 logprobs"),
        (
            Rollout(np.zeros(25, np.int32), np.arange(25) > 0, np.zeros(25, np.float32), 0.0, True),
            "has 25 tokens, more than policy.max_total_sequence_length = 24",
        ),
        (replace(GOOD, loss_mask=np.zeros(3, np.bool_)), "has no sampled token"),
        (replace(GOOD, loss_mask=np.ones(3, np.bool_)), "sampled token without a context"),
        (
            replace(GOOD, token_ids=np.array([1, 2, 13], np.int32)),
            "from 1 to 13, but the model knows 0 to 12",
        ),
        (replace(GOOD, logprobs=np.array([0, -np.inf, 0], np.float32)), "not finite"),
    ],
)
def test_a_rollout_that_cannot_be_trained_on_is_refused_by_name(rollout: Rollout, message: str) -> None:
    check_rollout(GOOD, where="this", **LIMITS)
    with pytest.raises(ValueError, match=f"rollout 3 of prompt 17 .*{message.removeprefix('has ')}"):
        check_rollout(rollout, where="rollout 3 of prompt 17", **LIMITS)


def test_an_empty_microbatch_trains_no_token() -> None:
    batch = empty_microbatch().to(torch.device("cpu"))
    assert not batch.loss_mask.any()
    assert batch.token_ids.dtype == torch.int64


@given(count=st.integers(0, 9), world_size=st.integers(1, 4))
def test_shares_of_ranks_are_whole_groups_each_taken_once(count: int, world_size: int) -> None:
    groups = make_groups(count, seed=count)
    shares = [share_of_rank(groups, rank, world_size) for rank in range(world_size)]
    assert sorted(group.prompt for share in shares for group in share) == list(range(count))
    tokens = [sum(len(r.token_ids) for group in share for r in group.rollouts) for share in shares]
    largest = max((sum(len(r.token_ids) for r in group.rollouts) for group in groups), default=0)
    assert max(tokens) <= sum(tokens) / world_size + largest
