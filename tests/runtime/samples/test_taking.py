"""Which rollouts become samples, and what a sample says of one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.files import Json
from runtime.generation.rollouts import Sample, SampledGroup
from runtime.groups import Rollout, RolloutGroup
from runtime.models.text import TextCodec
from runtime.models.tiny import character_tokenizer
from runtime.samples.config import SamplesConfig
from runtime.samples.taking import SampleTaker
from runtime.settings import load_settings
from runtime.tasks.base import Verdict
from runtime.tasks.data import load_task
from runtime.tasks.rewards import EXACT
from runtime.training.batching import training_sequences
from runtime.training.config import LossConfig

CODEC = TextCodec(character_tokenizer())


def taker(*, loss: LossConfig | None = None, num_prompts_per_step: int = 8, **config: Any) -> SampleTaker:
    task = load_task(load_settings(None).data, "training")
    return SampleTaker(SamplesConfig(**config), loss or LossConfig(), num_prompts_per_step, task, CODEC)


def sample_of(*texts: str, finished: bool = True) -> Sample:
    """A prompt, then by turns the policy and the environment."""
    tokens = [CODEC.encode_turn(text) for text in ("abc>", *texts)]
    mask = [np.full(len(part), turn % 2 == 1) for turn, part in enumerate(tokens)]
    ids = np.concatenate(tokens)
    ends = tuple(np.cumsum([len(part) for part in tokens]).tolist())
    return Sample(ids, np.concatenate(mask), np.zeros(len(ids), dtype=np.float32), finished, tuple(texts[::2]), ends)


def taken(
    taker: SampleTaker,
    samples: list[Sample],
    verdicts: list[Verdict],
    prompt: int = 8,
    index: int = 3,
) -> tuple[Json, ...]:
    rollouts = tuple(
        Rollout(sample.token_ids, sample.loss_mask, sample.logprobs, verdict.reward, sample.finished)
        for sample, verdict in zip(samples, verdicts, strict=True)
    )
    group = RolloutGroup(prompt, rollouts, start_weight=4, end_weight=5)
    return taker.take(SampledGroup(prompt, index, tuple(samples), 4, 5), group, verdicts)


def rated(*rewards: float) -> list[Verdict]:
    return [Verdict(reward, correct=reward == 1) for reward in rewards]


def test_every_step_has_its_share_of_prompts_and_the_first_items_come_in_every_epoch() -> None:
    few = taker(per_step=2)
    assert [prompt for prompt in range(16) if few.wants(prompt, index=50)] == [0, 4, 8, 12]
    assert few.wants(13, index=1)
    assert not few.wants(13, index=2)
    assert all(taker(per_step=20).wants(prompt, 50) for prompt in range(16))
    assert all(taker(per_step="all").wants(prompt, 50) for prompt in range(16))
    assert not any(taker(per_step=0).wants(prompt, 0) for prompt in range(16))


def test_the_best_the_worst_and_the_first_that_was_cut_off_are_taken() -> None:
    samples = [sample_of("cba"), sample_of("cbb"), sample_of("c", finished=False), sample_of("cb", finished=False)]
    lines = taken(taker(per_step=2), [*samples, sample_of("a")], rated(0.5, 1, 0.25, 0.25, -1))
    assert [line["sibling"] for line in lines] == [1, 2, 4]
    assert [line["finish_reason"] for line in lines] == ["stop", "length", "stop"]
    lines = taken(taker(per_step="all"), samples, rated(0.5, 1, 0.25, 0.25))
    assert [line["sibling"] for line in lines] == [0, 1, 2, 3]
    assert taken(taker(per_step=2), samples, rated(1, 1, 1, 1), prompt=9) == ()


def test_a_group_without_variance_is_taken_too() -> None:
    lines = taken(taker(per_step=2), [sample_of("ab"), sample_of("bc")], rated(0, 0))
    assert [(line["turns"][0]["text"], line["advantage"]) for line in lines] == [("ab", 0.0), ("bc", 0.0)]


def test_a_sample_says_what_was_asked_said_and_given() -> None:
    verdicts = [Verdict(1.5, correct=True, parts={"exact": 1.0, "short": 0.5}), Verdict(0, correct=False)]
    line = taken(taker(per_step=1), [sample_of("cba", "no", "cab"), sample_of("x")], verdicts, prompt=16)[0]
    assert line["turns"] == [
        {"role": "policy", "text": "cba"},
        {"role": "environment", "text": "no"},
        {"role": "policy", "text": "cab"},
    ]
    task = load_task(load_settings(None).data, "training")
    assert (line["prompt_text"], line["where"]) == ("abc>", task.where(3))
    assert (line["prompt"], line["item"], line["tokens"]) == (16, 3, 6)
    assert (line["reward"], line["parts"], line["correct"]) == (1.5, {"exact": 1.0, "short": 0.5}, True)
    assert (line["start_weight"], line["end_weight"]) == (4, 5)
    assert json.loads(json.dumps(line)) == line


@pytest.mark.parametrize(("weight", "weights"), [(0.5, {"exact": 1.0, "near": 0.5}), (1.0, {})])
def test_a_sample_has_the_weights_of_its_parts(tmp_path: Path, weight: float, weights: dict[str, float]) -> None:
    rows = "".join(json.dumps({"prompt": f"{number}=", "answer": str(number)}) + "\n" for number in range(40))
    (tmp_path / "rows.jsonl").write_text(rows, encoding="ascii")
    own = [{"target": EXACT}, {"target": EXACT, "name": "near", "weight": weight}]
    task = {"name": "jsonl", "path": str(tmp_path / "rows.jsonl"), "rewards": own}
    data = load_settings(None, [f"data.task={json.dumps(task)}"]).data
    weighted = replace(taker(per_step=1), task=load_task(data, "training"))
    assert taken(weighted, [sample_of("a"), sample_of("b")], rated(0, 1))[0]["weights"] == weights


def test_the_prompt_is_shown_as_the_model_got_it_with_special_tokens() -> None:
    ids = np.array([*CODEC.encode_turn("user: abc"), CODEC.tokenizer.eos_token_id, *CODEC.encode_turn("x")], np.int32)
    none = np.zeros(len(ids), dtype=np.float32)
    sample = Sample(ids, none > 0, none, True, ("x",), (len(ids) - 1, len(ids)))
    line = taken(taker(per_step=1), [sample, sample], rated(1, 0))[0]
    assert line["prompt_text"] == "user: abc<end>"


def test_a_conversation_that_ends_with_the_environment_keeps_its_last_words() -> None:
    sample = sample_of("ab", "go on")
    line = taken(taker(per_step=1), [sample, sample_of("x")], rated(1, 0))[0]
    assert [turn["text"] for turn in line["turns"]] == ["ab", "go on"]


def test_an_empty_turn_of_the_environment_keeps_its_place() -> None:
    line = taken(taker(per_step=1), [sample_of("ab", "", "cd", "no", "e"), sample_of("x")], rated(1, 0))[0]
    said = [(turn["role"], turn["text"]) for turn in line["turns"]]
    assert said == [
        ("policy", "ab"), ("environment", ""), ("policy", "cd"), ("environment", "no"), ("policy", "e")
    ]  # fmt: skip


@pytest.mark.parametrize("normalize", [True, False])
def test_advantages_are_those_that_the_trainer_computes(normalize: bool) -> None:
    loss = LossConfig.model_validate(
        {
            "normalize_rewards": normalize,
            "overlong_filtering": True,
            "reward_shaping": {"max_response_length": 4, "overlong_buffer_length": 3, "overlong_buffer_penalty": 0.5},
        }
    )
    samples = [sample_of("cba"), sample_of("c"), sample_of("cbabc", finished=False)]
    rewards = (0.5, 1.0, -1.0)
    lines = taken(taker(per_step="all", loss=loss), samples, rated(*rewards))
    group = RolloutGroup(
        8,
        tuple(
            Rollout(sample.token_ids, sample.loss_mask, sample.logprobs, reward, sample.finished)
            for sample, reward in zip(samples, rewards, strict=True)
        ),
        4,
        5,
    )
    trained = training_sequences([group], loss, max_total_sequence_length=64, vocabulary=1000)
    assert [line["advantage"] for line in lines if not line["masked"]] == [each.advantage for each in trained]
    assert [line["masked"] for line in lines] == [False, False, True]


def test_the_middle_of_a_long_text_is_left_out_and_its_end_stays() -> None:
    line = taken(taker(per_step=1, max_characters=100), [sample_of("a" * 500 + "z"), sample_of("b")], rated(1, 0))[0]
    text = line["turns"][0]["text"]
    assert text.startswith("aaa")
    assert text.endswith("az")
    assert "401 characters left out" in text
    assert len(text) < 150
    whole = taken(taker(per_step=1, max_characters=None), [sample_of("a" * 500), sample_of("b")], rated(1, 0))[0]
    assert whole["turns"][0]["text"] == "a" * 500
