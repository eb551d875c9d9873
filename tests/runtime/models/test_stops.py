"""What ends a completion is what the model's files say, and a turn that ends otherwise is told at the start."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from runtime.actors.generation_worker import to_be_rated
from runtime.actors.policy_host import PolicyHost
from runtime.actors.reward_worker import RewardWorker
from runtime.generation.config import GenerationConfig, Sampling
from runtime.generation.engine import GeneratedSequence, GroupRequest
from runtime.generation.on_torch.engine import load_torch_engine
from runtime.generation.rollouts import _append, _opening
from runtime.groups import Rollout, RolloutGroup
from runtime.launch.model import check_stops, prepare
from runtime.launch.preflight import Findings, Prepared
from runtime.models.directory import ModelDirectoryProblem, end_tokens
from runtime.models.text import TextCodec, model_stop_tokens
from runtime.models.tiny import END, character_tokenizer
from runtime.settings import Settings, load_settings
from runtime.training.batching import training_sequences
from runtime.training.config import LossConfig
from tests.runtime.models.architectures import save

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GLM = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
NO_ANSWERS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('no answers') }}{% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
REWRITES = "{% for m in messages %}{{ m.content | upper }}<|im_end|>{% endfor %}"


def chatting(template: str, *special: str) -> PreTrainedTokenizerBase:
    """The characters, some special tokens after them, and a chat template."""
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.chat_template = template
    return tokenizer


def settings(*overrides: str) -> Settings:
    return load_settings(None, ["data.chat=true", *overrides])


def looked_at(tokenizer: PreTrainedTokenizerBase, *overrides: str, stops: tuple[int, ...] = (1,)) -> Findings:
    return check_stops(settings(*overrides), tokenizer, stops)


def configure(directory: Path, file: str, **values: object) -> None:
    path = directory / file
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**known, **values}))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [5, 7]}, {"eos_token_id": 9}, {5, 7, 9}),
        ({"eos_token_id": 5}, {"eos_token_id": [9, 5]}, {5, 9}),
        ({}, {"eos_token_id": None}, set()),
        ({"eos_token_id": -1}, {"text_config": {"eos_token_id": 4}}, {4}),
        (None, {"eos_token_id": 3}, {3}),
    ],
)
def test_the_stop_tokens_are_those_of_both_configurations_and_the_tokenizer(
    generation: dict[str, object] | None, config: dict[str, object], expected: set[int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert end_tokens(tmp_path) == expected
    assert model_stop_tokens(character_tokenizer(), tmp_path) == tuple(sorted({1} | expected))
    silent = character_tokenizer()
    silent.eos_token = None
    assert model_stop_tokens(silent, tmp_path) == tuple(sorted(expected))


@pytest.mark.parametrize("value", ["</s>", [1, "two"], True, 1.5])
def test_a_stop_token_that_is_no_id_is_refused_with_its_file(value: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(ModelDirectoryProblem, match=r"config.json: eos_token_id is .*allowed: the id of a token"):
        end_tokens(tmp_path)


def test_an_answer_that_ends_with_another_token_is_told_with_what_to_set() -> None:
    tokenizer = chatting(CHATML, "<|im_start|>", "<|im_end|>")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    (notice,) = looked_at(tokenizer).notices
    assert f"ends an answer with '<|im_end|>' (token {end}), and the stop tokens are [1]" in notice
    assert f"set generation.stop_token_ids to [{end}]" in notice
    assert looked_at(tokenizer, f"generation.stop_token_ids=[{end}]") == Findings()
    assert looked_at(tokenizer, stops=(1, end)) == Findings()
    assert looked_at(tokenizer, "data.chat=false") == Findings()


def test_where_nothing_ends_an_answer_the_token_of_the_next_turn_counts() -> None:
    tokenizer = chatting(GLM, "<|user|>", "<|assistant|>", "<|observation|>")
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    assert f"ends an answer with '<|user|>' (token {user})" in looked_at(tokenizer).notices[0]
    assert looked_at(tokenizer, stops=(user,)) == Findings()


def test_templates_that_end_with_the_tokenizer_s_own_token_are_silent() -> None:
    assert looked_at(chatting(MISTRAL)) == Findings()


def test_an_end_of_ordinary_text_is_told_by_its_first_token() -> None:
    # "\n\n" ends an answer, and then "user: " follows: white space alone says nothing, so the next turn counts.
    (notice,) = looked_at(chatting(PLAIN)).notices
    assert r"ends an answer with '\n'" in notice


def test_templates_that_show_no_answer_are_not_guessed_at() -> None:
    (notice,) = looked_at(chatting(NO_ANSWERS)).notices
    assert "does not render an answer (line 1 of the tokenizer's chat template: TemplateError: no answers)" in notice
    assert looked_at(chatting(REWRITES, "<|im_end|>")) == Findings()


def test_a_stop_token_that_occurs_in_text_is_told() -> None:
    tokenizer = chatting(MISTRAL)
    letter = tokenizer.convert_tokens_to_ids("a")
    (notice,) = looked_at(tokenizer, stops=(1, letter)).notices
    assert f"names {letter}, which is the ordinary token 'a'" in notice
    assert looked_at(tokenizer, f"generation.stop_token_ids=[{letter}]") == Findings(), "the user's own is meant"
    assert looked_at(tokenizer, stops=(1, 10_000)) == Findings()


def test_a_run_whose_completions_nothing_ends_is_refused_unless_the_user_says_what_does() -> None:
    assert "set generation.stop_token_ids" in looked_at(chatting(MISTRAL), stops=()).refusals[0]
    assert looked_at(chatting(MISTRAL), "generation.stop_token_ids=[1]", stops=()) == Findings()


def test_what_is_told_reaches_the_start_of_a_run(tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model", vocab_size=120)
    chatting(CHATML, "<|im_start|>", "<|im_end|>").save_pretrained(model)
    overrides = [f"policy.model_name={model}", "policy.max_total_sequence_length=64", "generation.max_prompt_tokens=48"]
    *_, made = prepare(settings(*overrides), tmp_path / "unused")
    assert isinstance(made, Prepared)
    assert made.directory == model
    assert "<|im_end|>" in made.found.notices[0]
    configure(model, "generation_config.json", eos_token_id="</s>")
    *_, made = prepare(settings(*overrides), tmp_path / "unused")
    assert isinstance(made, Prepared)
    assert made.directory is None
    assert "eos_token_id is '</s>'" in made.found.refusals[0]


def sampled(model: Path, stops: tuple[int, ...]) -> list[GeneratedSequence]:
    config = GenerationConfig.model_validate({"max_prompt_tokens": 8, "max_new_tokens": 12, "stop_token_ids": [60]})
    engine = load_torch_engine(model, config, stop_token_ids=stops)
    prompt = np.array([5, 9, 30], dtype=np.int32)
    engine.submit([GroupRequest("g", prompt, 256, 0, Sampling(max_new_tokens=12))])
    groups = []
    while engine.has_work:
        groups += engine.step()
    return list(groups[0].sequences)


def test_each_of_several_stop_tokens_finishes_a_rollout_also_at_the_limit(tmp_path: Path) -> None:
    stops = (1, 40, 55)
    sequences = sampled(save("llama", tmp_path, initializer_range=0.02), stops)
    ends = {*stops, 60}
    finished = [sequence for sequence in sequences if sequence.finished]
    assert {int(sequence.token_ids[-1]) for sequence in finished} == ends
    for sequence in sequences:
        assert ends.isdisjoint(sequence.token_ids[:-1].tolist())
        assert sequence.finished == (int(sequence.token_ids[-1]) in ends)
        assert sequence.finished or len(sequence.token_ids) == 12
    assert any(len(sequence.token_ids) == 12 for sequence in finished), "a stop token at the limit has finished"

    # Overlong filtering leaves out those that were cut off, and none that any of the stop tokens ended.
    prompt = np.array([5, 9, 30], dtype=np.int32)
    rollouts = tuple(
        Rollout(
            token_ids=np.concatenate([prompt, sequence.token_ids]),
            loss_mask=np.arange(3 + len(sequence.token_ids)) >= 3,
            logprobs=np.concatenate([np.zeros(3, dtype=np.float32), sequence.logprobs]),
            reward=float(number % 2),
            finished=sequence.finished,
        )
        for number, sequence in enumerate(sequences)
    )
    trained = training_sequences(
        [RolloutGroup(prompt=0, rollouts=rollouts, start_weight=0, end_weight=0)],
        LossConfig(overlong_filtering=True),
        max_total_sequence_length=32,
        vocabulary=120,
    )
    kept = [sequence.rollout.token_ids.tolist() for sequence in trained]
    assert kept == [[*prompt, *sequence.token_ids] for sequence in finished]
    assert len(kept) < len(sequences)


def test_the_policy_host_stops_at_what_generation_config_names_in_validation_as_well(tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model", initializer_range=0.02)
    configure(model, "generation_config.json", eos_token_id=list(range(3, len(character_tokenizer()))))
    run = load_settings(
        None,
        [
            f"policy.model_name={model}",
            *("policy.max_total_sequence_length=64", "generation.max_prompt_tokens=48", "data.validation_size=16"),
        ],
    )

    async def evaluate() -> int:
        async with AsyncExitStack() as stack:
            host = await PolicyHost.open(run, model, 0, stack)
            rewards = RewardWorker(run.data, 1, 1, sets=run.sets)
            prompts = await host.encode_held_out("validation", range(16))
            await host.evaluate(
                "validation", "before", prompts, lambda groups: rewards.score(to_be_rated(groups), "validation")
            )
            return host._engine.health().generated_tokens

    # Nearly every first token ends a completion of 16, but for <pad> and <unk>.
    assert 16 <= asyncio.run(evaluate()) <= 20


def test_a_stop_token_that_opens_the_next_turn_is_not_there_twice() -> None:
    tokenizer = chatting(GLM, "<|user|>", "<|assistant|>")
    codec = TextCodec(tokenizer, chat=True)
    user, end = tokenizer.convert_tokens_to_ids("<|user|>"), tokenizer.eos_token_id
    assert tokenizer.decode(codec.encode_turn("more", user)) == "\nmore<|assistant|>"
    assert tokenizer.decode(codec.encode_turn("more", end)) == "<|user|>\nmore<|assistant|>"
    assert TextCodec(tokenizer).encode_turn("aa", tokenizer.convert_tokens_to_ids("a")).tolist().count(user) == 0
    assert tokenizer.decode(TextCodec(tokenizer).encode_turn("aa", tokenizer.convert_tokens_to_ids("a"))) == "aa"


def test_a_stop_token_is_no_part_of_what_was_said() -> None:
    codec = TextCodec(character_tokenizer())
    prompt, said = codec.encode_prompt("a"), codec.encode_prompt("bc;")
    logprobs = np.zeros(3, dtype=np.float32)
    for finished, text in ((True, "bc"), (False, "bc;")):
        sample = _append(_opening(prompt), GeneratedSequence(said, logprobs, finished), codec)
        assert sample.turns == (text,)
        assert sample.token_ids.tolist() == [*prompt, *said], "it is trained on all the same"
    assert END not in codec.decode(np.array([5, 1], dtype=np.int32))


def test_the_turn_ends_of_prompts_that_are_messages_are_told_without_chat(tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model", vocab_size=120)
    chatting(CHATML, "<|im_start|>", "<|im_end|>").save_pretrained(model)
    lines = [{"messages": [{"role": "user", "content": f"hi {number}"}], "answer": ""} for number in range(4)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = json.dumps({"name": "jsonl", "path": str(tmp_path / "chats.jsonl")})
    overrides = [f"data.task={task}", "data.validation_size=0", "generation.max_prompt_tokens=48"]
    sizes = [f"policy.model_name={model}", "policy.max_total_sequence_length=64"]
    *_, made = prepare(load_settings(None, [*overrides, *sizes]), tmp_path / "unused")
    assert isinstance(made, Prepared)
    assert made.directory == model
    assert any("<|im_end|>" in notice for notice in made.found.notices)
