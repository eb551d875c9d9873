"""Confidence intervals are those of the literature, and pass@k is what drawing rollouts gives."""

import math
from itertools import combinations

import numpy as np
import pytest

from runtime.evaluation.statistics import mean, median, orders_of_pass, pass_at_k, share


def test_the_interval_of_a_share_is_wilsons_if_every_prompt_has_one_rollout() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3: 81 of 263, and 15 of 148.
    for right, of, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)):
        estimate = share(np.array([1.0] * right + [0.0] * (of - right)), 1)
        assert estimate.value == pytest.approx(right / of)
        assert (round(estimate.low, 4), round(estimate.high, 4)) == (low, high)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_share_without_exceptions_is_not_certain(value: float) -> None:
    # Newcombe, the same table: 0 of 20 has (0, 0.1611).
    estimate = share(np.full(20, value), 1)
    assert round(abs(estimate.high - estimate.low), 4) == 0.1611
    assert value in (estimate.low, estimate.high)


def test_rollouts_that_agree_within_a_prompt_make_an_interval_no_narrower_than_the_prompts_do() -> None:
    prompts = np.array([1.0] * 30 + [0.0] * 70)
    sixteen, one = share(prompts, 16), share(prompts, 1)
    assert (sixteen.low, sixteen.high) == (pytest.approx(one.low), pytest.approx(one.high))
    spread = share(np.full(100, 0.3), 10)
    assert spread.high - spread.low == pytest.approx(2 * 1.96 * math.sqrt(0.3 * 0.7 / 1000), rel=0.01)


def test_the_intervals_hold_what_they_claim_where_rollouts_of_a_prompt_resemble_one_another() -> None:
    random = np.random.default_rng(0)
    covered = {"share": 0, "mean": 0, "median": 0}
    chance = random.beta(1.0, 1.0, size=(400, 60))  # a prompt's own
    for chances in chance:
        right = random.random((60, 8)) < chances[:, None]
        estimate = share(right.mean(axis=1), 8)
        covered["share"] += estimate.low <= 0.5 <= estimate.high
        lengths = 100 + 40 * random.standard_normal((60, 1)) + 10 * random.standard_normal((60, 8))
        for name, estimate in (("mean", mean(lengths)), ("median", median(lengths))):
            covered[name] += estimate.low <= 100 <= estimate.high
    assert all(0.91 <= times / 400 <= 0.99 for times in covered.values()), covered


def test_one_prompt_says_nothing_of_others() -> None:
    estimate = mean(np.array([[1.0, 0.0]]))
    assert estimate.value == 0.5
    assert estimate.as_json() == {"value": 0.5, "low": None, "high": None}


def test_a_missing_value_is_left_out_of_a_mean_and_of_its_error() -> None:
    whole, gaps = (
        np.array([[1.0], [2.0], [4.0], [5.0]]),
        np.array([[1.0, np.nan], [2.0, np.nan], [4.0, np.nan], [5.0, np.nan]]),
    )
    assert mean(gaps) == mean(whole)
    assert mean(whole).high == pytest.approx(3 + 1.96 * np.std([1, 2, 4, 5], ddof=1) / 2, abs=1e-3)
    assert mean(np.full((3, 2), np.nan)).value == 0.0


def test_pass_at_k_is_the_share_of_draws_with_a_correct_rollout() -> None:
    rollouts = 6
    for right in range(rollouts + 1):
        correct = [True] * right + [False] * (rollouts - right)
        for k in range(1, rollouts + 1):
            draws = list(combinations(correct, k))
            counted = sum(any(draw) for draw in draws) / len(draws)
            assert pass_at_k([right], rollouts, k).tolist() == [pytest.approx(counted)]


def test_more_draws_than_rollouts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pass@9 of 8 rollouts"):
        pass_at_k([1], 8, 9)


def test_the_orders_of_pass_are_powers_of_two_and_all_rollouts() -> None:
    assert [orders_of_pass(rollouts) for rollouts in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]
