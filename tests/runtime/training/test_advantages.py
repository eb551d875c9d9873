import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.groups import Rollout
from runtime.tasks.judges import LARGEST
from runtime.training.advantages import STD_EPSILON, group_advantages
from runtime.training.batching import in_the_loss, soft_overlong_punishment
from runtime.training.config import LossConfig, RewardShapingConfig

rewards_of_groups = st.integers(2, 6).flatmap(
    lambda siblings: st.lists(
        st.lists(st.floats(-5, 5, width=32), min_size=siblings, max_size=siblings), min_size=1, max_size=4
    )
)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("leave_one_out", [True, False])
@given(rewards=rewards_of_groups)
def test_advantages_equal_a_plain_recomputation(
    rewards: list[list[float]], normalize: bool, leave_one_out: bool
) -> None:
    advantages = group_advantages(
        np.array(rewards), normalize_rewards=normalize, use_leave_one_out_baseline=leave_one_out
    )
    for group, row in zip(rewards, advantages, strict=True):
        for i, reward in enumerate(group):
            compared = group[:i] + group[i + 1 :] if leave_one_out else group
            expected = reward - sum(compared) / len(compared)
            if normalize and len(set(compared)) > 1:
                expected /= statistics.stdev(compared) + STD_EPSILON
            assert row[i] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_one_right_answer_of_four_has_the_closed_form() -> None:
    advantages = group_advantages(
        np.array([[1.0, 0.0, 0.0, 0.0]]), normalize_rewards=True, use_leave_one_out_baseline=False
    )
    # mean 1/4, sample standard deviation 1/2
    np.testing.assert_allclose(advantages, [[1.5, -0.5, -0.5, -0.5]], rtol=1e-5)


def test_leave_one_out_divides_by_the_deviation_of_the_others_and_not_at_all_where_they_agree() -> None:
    advantages = group_advantages(
        np.array([[1.0, *[0.0] * 15]]), normalize_rewards=True, use_leave_one_out_baseline=True
    )[0]
    assert advantages[0] == 1.0
    # The others of a wrong answer are one right of 15: mean 1/15, sample variance 1/15.
    np.testing.assert_allclose(advantages[1:], -1 / 15 / ((1 / 15) ** 0.5 + STD_EPSILON), rtol=1e-12)


@pytest.mark.parametrize(("rewards", "expected"), [([1.0, 0.0], [1.0, -1.0]), ([0.1, 0.1], [0.0, 0.0])])
def test_in_a_group_of_two_a_single_other_has_no_deviation_to_divide_by(
    rewards: list[float], expected: list[float]
) -> None:
    advantages = group_advantages(np.array([rewards]), normalize_rewards=True, use_leave_one_out_baseline=True)
    assert advantages.tolist() == [expected]


def test_others_that_agree_in_a_number_without_an_exact_mean_are_not_divided_by_rounding() -> None:
    rewards = np.array([[1.0, *[0.1] * 7]])
    (advantages,) = group_advantages(rewards, normalize_rewards=True, use_leave_one_out_baseline=True)
    assert advantages[0] == pytest.approx(0.9)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1e-9, -7.7])
def test_a_group_of_equal_rewards_has_exactly_zero_advantage(reward: float, normalize: bool) -> None:
    advantages = group_advantages(np.full((2, 7), reward), normalize_rewards=normalize, use_leave_one_out_baseline=True)
    assert (advantages == 0).all()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("leave_one_out", [True, False])
def test_the_largest_rewards_leave_a_gradient_room_in_float32(normalize: bool, leave_one_out: bool) -> None:
    advantages = group_advantages(
        np.array([[LARGEST, -LARGEST, 0.0, 0.0]]), normalize_rewards=normalize, use_leave_one_out_baseline=leave_one_out
    )
    gradient = advantages.astype(np.float32) * np.float32(1000)
    assert np.isfinite(np.square(gradient).sum())
    assert advantages[0, 0] > 0 > advantages[0, 1]


def test_a_group_of_one_has_zero_advantage_without_leave_one_out() -> None:
    advantages = group_advantages(np.array([[3.0]]), normalize_rewards=True, use_leave_one_out_baseline=False)
    assert advantages.tolist() == [[0.0]]


def test_advantages_do_not_depend_on_the_other_groups_of_the_chunk() -> None:
    rewards = np.random.default_rng(0).normal(size=(5, 8))
    together = group_advantages(rewards, normalize_rewards=True, use_leave_one_out_baseline=False)
    for row, group in zip(together, rewards, strict=True):
        alone = group_advantages(group[None], normalize_rewards=True, use_leave_one_out_baseline=False)
        assert (alone[0] == row).all()


@pytest.mark.parametrize(
    ("rewards", "leave_one_out", "message"),
    [
        (np.zeros(3), False, r"rewards have shape \(3,\)"),
        (np.zeros((2, 0)), False, r"rewards have shape \(2, 0\)"),
        (np.array([[0.0, np.nan]]), False, "sibling 1 of group 0 is nan"),
        (np.zeros((2, 1)), True, "needs two siblings"),
    ],
)
def test_rewards_without_advantages_are_refused(rewards: np.ndarray, leave_one_out: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards, normalize_rewards=False, use_leave_one_out_baseline=leave_one_out)


@pytest.mark.parametrize(
    ("tokens", "punishment"),
    [(0, 0.0), (12, 0.0), (13, -0.25), (16, -1.0), (18, -1.5), (20, -2.0), (25, -2.0)],
)
def test_soft_overlong_punishment_follows_equation_13_of_dapo(tokens: int, punishment: float) -> None:
    shaping = RewardShapingConfig(max_response_length=20, overlong_buffer_length=8, overlong_buffer_penalty=2.0)
    assert soft_overlong_punishment(tokens, shaping) == pytest.approx(punishment)


def test_only_overlong_filtering_leaves_a_cut_off_rollout_out() -> None:
    def rollout(*, finished: bool) -> Rollout:
        return Rollout(np.zeros(2, np.int32), np.array([False, True]), np.zeros(2, np.float32), 0.0, finished)

    filtering, keeping = LossConfig(overlong_filtering=True), LossConfig()
    assert in_the_loss(rollout(finished=True), filtering)
    assert not in_the_loss(rollout(finished=False), filtering)
    assert in_the_loss(rollout(finished=False), keeping)
