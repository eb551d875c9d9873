"""Prompts that are longer than allowed are refused at the start, where they are there from the start."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from runtime.control.messages import Progress
from runtime.launch import prompt_lengths
from runtime.launch.model import check_model_and_prompts
from runtime.launch.preflight import Findings
from runtime.launch.prompt_lengths import count_prompts
from runtime.models.tiny import character_tokenizer
from runtime.models.unknown import UnknownText
from runtime.settings import load_settings

NOTHING = Findings()
JSONL = [
    "data.task.name=jsonl",
    "data.held_out_fraction=0",
    "data.validation_size=0",
    "generation.max_prompt_tokens=10",
]


def counted(*overrides: str) -> Findings:
    return whole(count_prompts(load_settings(None, overrides), character_tokenizer()))


def whole(counting: Generator[Progress, None, Findings]) -> Findings:
    while True:
        try:
            next(counting)
        except StopIteration as end:
            found: Findings = end.value
            return found


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


def test_of_a_long_list_a_sample_is_counted_and_the_budget_is_estimated(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L7: a prompt that is not counted fails when its rollout starts."""
    monkeypatch.setattr(prompt_lengths, "COUNTED_MAX", 6)
    monkeypatch.setattr(prompt_lengths, "SAMPLED", 3)  # lines 1, 3 and 5
    budget = "async_rl.rollout_failure.max_skipped_prompts"
    [refusal] = counted(*JSONL, data).refusals
    assert "1 of 3 prompts of training are longer" in refusal
    assert "data.jsonl:5 has 13 tokens" in refusal
    assert refusal.endswith("max_skipped_prompts: 3")
    [notice, skipped] = counted(*JSONL, data, f"{budget}=3").notices
    assert notice.startswith("3 of the 7 training prompts were counted; any other that is longer than generation.")
    assert "1 of 3 prompts are longer" in skipped


def test_counting_says_how_far_it_is(data: str) -> None:
    counting = count_prompts(load_settings(None, [*JSONL, data]), character_tokenizer())
    assert list(counting) == [Progress("counting prompts", 7, 7)]


def test_messages_that_the_template_refuses_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "strict.jinja").write_text("{{ raise_exception('no system message') }}")
    path = tmp_path / "chats.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "hi"}], "answer": ""}\n')
    template = ["data.chat=true", f"data.chat_template={tmp_path / 'strict.jinja'}"]
    [refusal] = counted(*JSONL, f"data.task.path={path}", *template).refusals
    assert refusal.startswith(f"{path}:1: the chat template does not render the messages")
    assert "no system message" in refusal


def test_a_prompt_of_which_the_template_leaves_nothing_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "lenient.jinja").write_text("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    path = tmp_path / "chats.jsonl"
    rows = [{"messages": [{"role": role, "content": "hi"}], "answer": ""} for role in ("user", "human")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    template = ["data.chat=true", f"data.chat_template={tmp_path / 'lenient.jinja'}"]
    [refusal] = counted(*JSONL, f"data.task.path={path}", *template).refusals
    assert refusal.startswith(f"{path}:2: its prompt has 0 tokens: [{{'role': 'human', 'content': 'hi'}}] is rendered")


def test_characters_that_the_tokenizer_lacks_are_told_with_the_first_line_and_refused_for_a_tiny_model(
    tmp_path: Path,
) -> None:
    """A name of the unknown token in the text is no such character."""
    path = tmp_path / "odd.jsonl"
    rows = [("<unk>", "<unk>"), ("süß", "SÜSS"), ("plain", "plain"), ("groß", "Ü")]
    path.write_text("".join(json.dumps({"prompt": ask, "answer": say}) + "\n" for ask, say in rows), encoding="utf-8")
    found = counted(*JSONL, f"data.task.path={path}")
    [prompts] = found.unknown
    assert prompts.startswith(
        "2 prompts of training have characters that the model's tokenizer does not know: 'ü', 'ß' "
        f"(first in {path}:2), "
    )
    [answers] = found.notices
    assert answers.startswith("2 answers of training have characters ")
    assert f"'Ü' (first in {path}:2)" in answers
    assert found.refusals == ()
    settings = load_settings(None, [*JSONL, f"data.task.path={path}"])
    assert whole(check_model_and_prompts(settings)).refusals == (prompts,)
    (tmp_path / "config.json").write_text("{}")
    begun = whole(check_model_and_prompts(settings, tmp_path))
    assert begun.refusals == ()
    assert prompts in begun.notices


def test_a_tokenizer_of_words_lacks_words() -> None:
    words = Tokenizer(WordLevel({"<unk>": 0, "known": 1, "end": 2}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    unknown = UnknownText(tokenizer)
    texts = ["known end", None, "known other end"]
    for number in unknown.suspects(texts):
        unknown.look_at(texts[number] or "", f"line {number}".__str__)
    assert unknown.rows == 1
    assert unknown.says() == "text that the model's tokenizer does not know: 'other' (first in line 2)"
