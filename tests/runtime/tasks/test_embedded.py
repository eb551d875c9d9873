"""The embedded tasks, their split, the stream of prompts, and delayed verdicts."""

import asyncio
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from runtime.actors.reward_worker import RewardWorker, delay_s
from runtime.generation.config import GenerationConfig
from runtime.settings import Settings
from runtime.tasks.base import TaskError, Verdict
from runtime.tasks.config import (
    DataConfig,
    DelayConfig,
    JsonlTaskConfig,
    ReasoningGymTaskConfig,
    ReverseTaskConfig,
    SortTaskConfig,
)
from runtime.tasks.data import Stream, item_at, load_task, take
from runtime.tasks.split import derive_seed, is_held_out
from tests.runtime.bookkeeping import said


def data(**options: object) -> DataConfig:
    return DataConfig.model_validate({"num_prompts": 500, "validation_size": 50, **options})


@pytest.mark.parametrize("task", [ReverseTaskConfig(), SortTaskConfig()])
def test_the_reference_answer_is_right_and_anything_else_is_not(task: ReverseTaskConfig | SortTaskConfig) -> None:
    loaded = load_task(data(task=task), "training")
    for index in range(200):
        text = loaded.prompt(index).removesuffix(">").strip()
        answer = loaded.reference(index)
        assert answer == (text[::-1] if task.name == "reverse" else "".join(sorted(text)))
        assert 3 <= len(text) <= 8
        assert len(loaded.prompt(index)) == 9
        verdict = loaded.verify(index, said(answer), 0)
        assert (verdict.reward, verdict.correct) == (1.0, True)
        for wrong in ("", answer + "a", answer[:-1], f" {answer}"):
            verdict = loaded.verify(index, said(wrong), 0)
            assert (verdict.reward, verdict.correct) == (0.0, False)


def test_partial_reward_is_the_share_of_places_that_are_right() -> None:
    task = load_task(data(task=SortTaskConfig(min_length=4, max_length=4, reward="partial")), "training")
    answer = task.reference(0)
    assert answer is not None
    assert task.verify(0, said(answer), 0).reward == 1.0
    half = task.verify(0, said(answer[:2]), 0)
    assert (half.reward, half.correct) == (0.5, False)
    surplus = task.verify(0, said(answer + "0" * 4), 0)
    assert (surplus.reward, surplus.correct) == (0.5, False)
    assert task.verify(0, said(""), 0).reward == 0.0


def test_an_item_is_a_function_of_seed_and_index_in_every_process() -> None:
    script = (
        "from runtime.tasks.config import DataConfig\nfrom runtime.tasks.data import load_task\n"
        "print(*(load_task(DataConfig(num_prompts=500, validation_size=50, seed=3), split).prompt(7)"
        " for split in ('training', 'validation')), sep='|')"
    )
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    training, validation = (load_task(data(seed=3), split) for split in ("training", "validation"))  # type: ignore[arg-type]
    assert elsewhere.strip("\n") == f"{training.prompt(7)}|{validation.prompt(7)}"
    assert load_task(data(seed=4), "training").prompt(7) != training.prompt(7)


def test_no_training_prompt_is_held_out_even_where_there_are_few_prompts() -> None:
    config = data(task=SortTaskConfig(min_length=1, max_length=2), held_out_fraction=0.3)
    training = load_task(config, "training")
    for seed in range(3):
        validation = load_task(config.model_copy(update={"seed": seed}), "validation")
        held_out = {validation.prompt(index) for index in range(validation.num_prompts)}
        assert len(held_out) == validation.num_prompts > 10
        assert not held_out & {training.prompt(index) for index in range(500)}


def test_the_held_out_share_is_about_the_fraction() -> None:
    share = sum(is_held_out(f"prompt {number}", 0.2) for number in range(5000)) / 5000
    assert share == pytest.approx(0.2, abs=0.02)


def test_a_side_of_the_split_that_stays_empty_is_told_at_the_start() -> None:
    with pytest.raises(TaskError, match=r"no held-out prompt with data.held_out_fraction 0.0: raise the fraction"):
        load_task(data(held_out_fraction=0.0), "validation")
    assert load_task(data(validation_size=0), "validation").num_prompts == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": {"name": "reverse", "min_length": 9}}, "min_length 9 is above max_length 8"),
        ({"task": {"name": "reverse", "lenght": 9}}, "lenght"),
        ({"task": {"name": "revers"}}, "revers"),
        ({"prompt_template": "{promt}"}, "every prompt would be the same"),
        ({"system_prompt": "be brief"}, "needs chat: true"),
        ({"delay": {"median_s": 2.0, "max_s": 1.0}}, "put them in order"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        data(**options)


def test_blocks_load_from_what_yaml_gives_and_describe_every_key() -> None:
    document = """
    task: {name: jsonl, path: some.jsonl, validation_path: other.jsonl}
    delay: {median_s: 1, max_s: 2}
    """
    config = DataConfig.model_validate(yaml.safe_load(document))
    assert isinstance(config.task, JsonlTaskConfig)
    assert config.task.validation_path == Path("other.jsonl")
    generation = GenerationConfig.model_validate(yaml.safe_load("{engine: {name: torch}, stop_token_ids: [2, 3]}"))
    assert generation.stop_token_ids == (2, 3)
    for block in (DataConfig, DelayConfig, ReverseTaskConfig, SortTaskConfig, ReasoningGymTaskConfig, JsonlTaskConfig):
        for name, field in block.model_fields.items():
            assert field.description, f"{block.__name__}.{name}"


def test_seeds_differ_wherever_their_parts_do() -> None:
    parts: list[tuple[int | str, ...]] = [(), (1,), ("1",), (1, 2), (2, 1), (12,), ("1;", 2), ("1", ";2"), (1, 2, "")]
    seeds = {derive_seed(*part) for part in parts}
    assert len(seeds) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_delays_are_seeded_and_long_tailed() -> None:
    delay = DelayConfig(median_s=0.004, sigma=1.0, min_s=0.001, max_s=0.03)
    delays = [delay_s(delay, 0, index, sibling) for index in range(100) for sibling in range(8)]
    assert delays == [delay_s(delay, 0, index, sibling) for index in range(100) for sibling in range(8)]
    assert delays != [delay_s(delay, 1, index, sibling) for index in range(100) for sibling in range(8)]
    assert statistics.median(delays) == pytest.approx(0.004, rel=0.15)
    assert (min(delays), max(delays)) == (0.001, 0.03)


def test_only_verdicts_of_training_are_held_back_and_only_so_many_at_a_time() -> None:
    config = data(delay=DelayConfig(median_s=0.2, sigma=0.0, max_s=1.0))

    async def took_s(split: str, threads: int) -> float:
        worker = RewardWorker(config, threads, 1, sets=Settings(data=config).sets)
        began_s = time.monotonic()
        answer = str(load_task(config, split).reference(0))  # type: ignore[arg-type]
        scored = await worker.score([(0, [said(answer), said(""), said(answer)])], split)
        assert scored.groups == [(Verdict(1.0, True), Verdict(0.0, False), Verdict(1.0, True))]
        return time.monotonic() - began_s

    assert asyncio.run(took_s("training", 3)) >= 0.2
    assert asyncio.run(took_s("training", 1)) >= 0.6
    assert asyncio.run(took_s("validation", 1)) < 0.2


STREAM = Stream(num_prompts=10, seed=1, shuffle=True, max_epochs=2)


@settings(max_examples=60, deadline=None)
@given(shuffle=st.booleans(), counts=st.lists(st.integers(1, 7), min_size=25, max_size=25))
def test_however_it_is_cut_into_batches_the_stream_gives_each_item_once_an_epoch(
    shuffle: bool, counts: list[int]
) -> None:
    stream = replace(STREAM, shuffle=shuffle)
    batches = []
    for count in counts:
        batch, stream = take(stream, count)
        batches.append(batch)
        assert len(batch) <= count
        assert len({item.prompt // 10 for item in batch}) <= 1
    items = [item for batch in batches for item in batch]
    assert [item.prompt for item in items] == list(range(20))
    assert all(sorted(item.index for item in items[at : at + 10]) == list(range(10)) for at in (0, 10))
    assert stream.left_in_epoch == 0
    assert items == [item_at(STREAM if shuffle else stream, prompt) for prompt in range(20)]


def test_a_stream_resumes_from_its_position_alone() -> None:
    _, later = take(STREAM, 7)
    resumed = replace(STREAM, position=later.position)
    assert take(resumed, 5) == take(later, 5)
    assert resumed.left_in_epoch == 3


def test_a_stream_whose_first_prompt_has_another_number_gives_the_same_items_under_numbers_from_there_on() -> None:
    """C3: the data that a run went on with is read from its start."""
    later = replace(STREAM, first_prompt=60)
    batch, later = take(later, 7)
    assert [item.prompt for item in batch] == list(range(60, 67))
    assert [item.index for item in batch] == [item.index for item in take(STREAM, 7)[0]]
    assert [item_at(later, 60 + prompt).index for prompt in range(20)] == [
        item_at(STREAM, prompt).index for prompt in range(20)
    ]


def test_shuffled_epochs_have_different_orders() -> None:
    orders = [[item_at(STREAM, 10 * epoch + at).index for at in range(10)] for epoch in range(2)]
    assert orders[0] != orders[1]


def test_without_a_limit_of_epochs_a_stream_never_ends() -> None:
    endless = replace(STREAM, max_epochs=None, position=10_000)
    assert endless.left_in_epoch == 10
    assert len(take(endless, 4)[0]) == 4
