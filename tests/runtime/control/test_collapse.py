"""When a run says that nothing is left to learn, in which words, and how often."""

from pathlib import Path
from typing import Any

from runtime.control.collapse import FEWEST_GROUPS, CollapseWatch
from runtime.groups import GroupReceipt
from tests.runtime.bookkeeping import receipt_of

RUN = Path("runs/mine")


def group(*rewards: float, tokens: int = 5, **changes: Any) -> GroupReceipt:
    return receipt_of(0, rewards, (tokens,) * len(rewards), **changes)


def told(*receipts: GroupReceipt, num_prompts_per_step: int = 4) -> list[tuple[int, str]]:
    """What is said, and after how many groups."""
    watch = CollapseWatch(num_prompts_per_step, RUN)
    said = [(number, watch.receive(receipt)) for number, receipt in enumerate(receipts, start=1)]
    return [(number, notice) for number, notice in said if notice is not None]


def test_rewards_that_are_all_zero_are_told_once_with_the_command_that_shows_why() -> None:
    [(after, notice)] = told(*[group(0, 0, distinct=2)] * 200)
    assert after == FEWEST_GROUPS
    assert notice.startswith("nothing can be learned from the last 32 groups: in each of them all rewards are equal")
    assert "and each reward is 0; look at what the policy says: evenstep samples runs/mine." in notice
    assert "optimizer.lr" in notice


def test_it_takes_three_steps_of_groups() -> None:
    assert told(*[group(0, 0)] * 299, num_prompts_per_step=100) == []
    assert [after for after, _ in told(*[group(0, 0)] * 301, num_prompts_per_step=100)] == [300]


def test_empty_and_equal_completions_are_called_a_collapse() -> None:
    assert "every completion of the last 32 groups is empty" in told(*[group(0, 0, tokens=1, distinct=1)] * 32)[0][1]
    assert "all completions are the same" in told(*[group(0.5, 0.5, distinct=1), group(0, 0, distinct=1)] * 16)[0][1]
    uncounted = told(*[group(0.5, 0.5)] * 32)[0][1]
    assert "the same" not in uncounted
    assert "collapsed" not in uncounted


def test_data_that_is_solved_is_no_collapse() -> None:
    [(_, notice)] = told(*[group(1, 1, distinct=1)] * 40)
    assert notice.startswith("nothing is left to learn: every completion of the last 32 groups is right")
    assert notice.endswith("Give harder data, or end the run")


def test_data_that_is_mostly_solved_is_no_collapse_either() -> None:
    solved, wrong = group(1, 1, distinct=1), group(0, 0, distinct=1)
    [(_, notice)] = told(*[solved] * 30, wrong, wrong)
    assert notice.startswith("little is left to learn: of the last 32 groups, 30 have only right completions")
    assert "collapsed" not in notice
    assert notice.endswith("Give harder data, or end the run")
    assert "collapsed" in told(*[solved] * 15, *[wrong] * 17)[0][1]


def test_one_group_with_variance_is_enough_to_say_nothing() -> None:
    assert told(*([group(0, 0)] * 31 + [group(0, 1)]) * 5) == []


def test_it_is_said_again_only_after_a_time_in_which_half_could_be_learned_from() -> None:
    dead, alive = [group(0, 0)] * 32, [group(0, 1)]
    assert len(told(*dead, *alive, *dead, *alive, *dead)) == 1
    assert len(told(*dead, *alive * 16, *dead)) == 2
