"""Which of the core's notices a user is told at the start."""

import pytest

from fsm.config.setup import set_up
from runtime.control.starting import data_ends_first, worth_telling
from runtime.settings import load_settings

NO_DEADLINE = "async_rl.rollout_failure.rollout_timeout_s"
OWN_CODE = "data.task={name: jsonl, path: lines.jsonl, verifier: 'mine:rate'}"


def told(*overrides: str) -> list[str]:
    settings = load_settings(None, overrides)
    return list(worth_telling(set_up(settings, 1_000).notices, settings))


@pytest.mark.parametrize(
    "may_hang",
    [OWN_CODE, "cluster.address=auto", "generation.engine={name: vllm}", "data.task={name: custom, target: 'm:C'}"],
)
def test_a_missing_deadline_is_told_in_one_short_line_where_a_rollout_may_hang(may_hang: str) -> None:
    [notice] = [notice for notice in told(may_hang, f"{NO_DEADLINE}=null") if NO_DEADLINE in notice]
    assert len(notice) < 150
    assert [notice for notice in told(may_hang) if NO_DEADLINE in notice] == []


def test_where_nothing_can_hang_a_missing_deadline_is_not_told_and_other_notices_are() -> None:
    reserve = "async_rl.rollout_failure.replacement_reserve_prompts"
    [notice] = told(f"{NO_DEADLINE}=null", f"{reserve}=100")
    assert reserve in notice


@pytest.mark.parametrize(
    ("epochs", "prompts", "steps"), [("1", 92, "at most 11 steps of 8"), ("2", 8, "at most 2 steps")]
)
def test_data_that_ends_before_the_last_step_is_told(epochs: str, prompts: int, steps: str) -> None:
    settings = load_settings(None, ["grpo.max_num_steps=12", f"grpo.max_num_epochs={epochs}"])
    [notice] = data_ends_first(set_up(settings, prompts).limits)
    assert steps in notice
    assert "grpo.max_num_steps is 12" in notice
    assert list(data_ends_first(set_up(settings, 96).limits)) == []
    for override in ("grpo.max_num_epochs=null", "grpo.max_num_steps=null"):
        settings = load_settings(None, ["grpo.max_num_steps=12", "grpo.max_num_epochs=1", override])
        assert list(data_ends_first(set_up(settings, 8).limits)) == []
