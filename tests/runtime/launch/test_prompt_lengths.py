"""Prompts that are longer than allowed are refused at the start, where they are there from the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.launch.preflight import Findings
from runtime.launch.prompt_lengths import count_prompts
from runtime.models.tiny import character_tokenizer
from runtime.settings import load_settings

NOTHING = Findings()
JSONL = [
    "data.task.name=jsonl",
    "data.held_out_fraction=0",
    "data.validation_size=0",
    "generation.max_prompt_tokens=10",
]


def counted(*overrides: str) -> Findings:
    return count_prompts(load_settings(None, overrides), character_tokenizer())


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Lines 2, 4, 5, 6 and 7 have 11, 12, 13, 14 and 15 characters."""
    path = tmp_path / "data.jsonl"
    lengths = [3, 11, 10, 12, 13, 14, 15]
    path.write_text("".join(json.dumps({"prompt": "x" * n, "answer": "y"}) + "\n" for n in lengths), encoding="utf-8")
    return f"data.task.path={path}"


def test_the_longest_are_named_with_their_length_the_limit_and_what_to_change(data: str) -> None:
    [refusal] = counted(*JSONL, data).refusals
    assert "5 of 7 prompts of training are longer than generation.max_prompt_tokens = 10" in refusal
    assert "data.jsonl:7 has 15 tokens" in refusal
    assert "data.jsonl:6 has 14 tokens, " in refusal
    assert "data.jsonl:5 has 13 tokens and 2 more" in refusal
    assert "set max_prompt_tokens to 15," in refusal
    assert "max_skipped_prompts: 5" in refusal


def test_a_limit_that_fits_all_is_accepted_and_templates_are_counted(data: str) -> None:
    fits = [*JSONL, data, "generation.max_prompt_tokens=15"]
    assert counted(*fits) == NOTHING
    [refusal] = counted(*fits, "data.prompt_template='{prompt}='").refusals
    assert "1 of 7 prompts" in refusal
    assert "data.jsonl:7 has 16 tokens" in refusal


def test_the_sequence_length_is_named_where_it_would_not_hold_the_longest(data: str) -> None:
    short = [*JSONL, data, "policy.max_total_sequence_length=26"]
    assert "policy.max_total_sequence_length to 31" in counted(*short).refusals[0]


@pytest.mark.parametrize(
    ("budget", "epochs", "refused"),
    [(5, "1", False), (4, "1", True), (5, "2", True), (10, "2", False), (10, "null", False), (9, "null", True)],
)
def test_prompts_that_a_run_may_skip_are_only_told(data: str, budget: int, epochs: str, refused: bool) -> None:
    """L7: the budget is of the whole run, and an epoch's prompts are others than the last one's.

    Without a limit of epochs, one step of 8 prompts begins the 7 lines a second time.
    """
    found = counted(
        *JSONL,
        data,
        f"grpo.max_num_epochs={epochs}",
        "grpo.max_num_steps=1",
        f"async_rl.rollout_failure.max_skipped_prompts={budget}",
    )
    assert bool(found.refusals) == refused
    assert bool(found.notices) != refused
    if not refused:
        assert "5 of 7 prompts" in found.notices[0]
        assert "will be skipped: " in found.notices[0]


def test_held_out_prompts_are_counted_though_training_draws_its_own() -> None:
    drawn = ["data.task={name: reverse, max_length: 8}", "generation.max_prompt_tokens=8"]  # 8 letters and >
    [refusal] = counted(*drawn).refusals
    assert "256 of 256 prompts of validation" in refusal
    assert "item 0 ('" in refusal
    assert "max_skipped_prompts" not in refusal
    assert counted(*drawn, "data.validation_size=0") == NOTHING


def test_a_tokenizer_without_the_chat_template_that_the_data_wants_is_refused() -> None:
    [refusal] = counted("data.chat=true").refusals
    assert "has no chat template" in refusal
