"""Rollouts of several turns: whose tokens carry loss, where they end, and what an environment's failure costs."""

import asyncio
from collections.abc import Sequence
from copy import copy
from itertools import pairwise

import numpy as np
import pytest
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from runtime.generation import rollouts
from runtime.generation.config import Sampling
from runtime.generation.engine import GeneratedSequence
from runtime.generation.evaluate import evaluate
from runtime.generation.on_torch.loop import EngineLoop
from runtime.generation.rollouts import SampledGroup, sample_groups
from runtime.groups import Evaluation
from runtime.models.text import TextCodec
from runtime.models.tiny import character_tokenizer
from runtime.tasks.base import Chat, DataFailure
from runtime.tasks.environments.host import EnvironmentLost
from runtime.tasks.environments.interface import Answer
from runtime.training.batching import training_sequences
from runtime.training.config import LossConfig
from tests.runtime.generation.episodes import Asking, Guessing, encoded, job, opens, rate, sampled, score_group
from tests.runtime.generation.helpers import make_config, make_engine, plain_logprobs
from tests.users.hostile_templates import TEMPLATES


def test_in_several_turns_only_the_policys_tokens_carry_loss_and_their_logprobs_are_right(
    model: GPT2LMHeadModel, codec: TextCodec
) -> None:
    group = asyncio.run(sampled(model, Asking, codec))
    turns = {len(sample.turns) for sample in group.samples}
    assert 3 in turns
    request = job(Guessing(), codec).request
    start = len(request.prompt_token_ids)
    for sample, rollout in zip(group.samples, score_group(Guessing(), group).rollouts, strict=True):
        whole = GeneratedSequence(sample.token_ids[start:], sample.logprobs[start:], sample.finished)
        expected = plain_logprobs(model, request, whole)
        mask = sample.loss_mask[start:]
        np.testing.assert_allclose(whole.logprobs[mask], expected[mask], atol=2e-5)
        inserted = whole.token_ids[~mask].tolist()
        assert inserted == codec.encode_turn("?").tolist() * (len(sample.turns) - 1)
        assert rollout.reward == pytest.approx(len(sample.turns) / 3)


def test_turns_end_at_their_limit_and_where_the_conversation_grows_too_long(
    model: GPT2LMHeadModel, codec: TextCodec
) -> None:
    one = asyncio.run(sampled(model, Asking, codec, max_turns=1))
    assert {len(sample.turns) for sample in one.samples} == {1}
    short = asyncio.run(sampled(model, Asking, codec, max_prompt_tokens=3))
    assert all(len(sample.turns) == 1 for sample in short.samples)
    assert not any(sample.finished for sample in short.samples)


@pytest.mark.parametrize("overlong_filtering", [False, True])
def test_a_turn_of_the_environment_that_does_not_fit_ends_the_rollout_as_truncated(
    model: GPT2LMHeadModel, codec: TextCodec, overlong_filtering: bool
) -> None:
    class Verbose(Asking):
        def answer(self, turns: Sequence[str]) -> Answer:
            return "?" * (1 if len(turns) < 2 else 500)

    group = asyncio.run(sampled(model, Verbose, codec))
    assert {len(sample.turns) for sample in group.samples} == {2}
    for sample in group.samples:
        assert not sample.finished
        assert len(sample.token_ids) == len(sample.loss_mask) == len(sample.logprobs) <= 40 + 8
        assert sample.loss_mask[-1], "it ends with what the policy sampled"
    sequences = training_sequences(
        [score_group(Guessing(), group)],
        LossConfig(overlong_filtering=overlong_filtering),
        max_total_sequence_length=40 + 8,
        vocabulary=model.config.vocab_size,
    )
    assert len(sequences) == (0 if overlong_filtering else 4)


@pytest.mark.parametrize("said", range(1, 60, 7))
def test_no_conversation_outgrows_the_longest_prompt_and_a_last_turn(
    model: GPT2LMHeadModel, codec: TextCodec, said: int
) -> None:
    class Talking(Asking):
        def answer(self, turns: Sequence[str]) -> Answer:
            return "?" * said

    group = asyncio.run(sampled(model, Talking, codec))
    for sample in group.samples:
        assert len(sample.token_ids) <= 40 + 8
        asked = int((~sample.loss_mask).sum()) - len(job(Guessing(), codec).request.prompt_token_ids)
        assert asked == said * (len(sample.turns) - 1), "every turn of the environment is whole, and was answered"


def test_a_turn_of_the_environment_may_fill_the_prompt_to_its_last_token(
    model: GPT2LMHeadModel, codec: TextCodec
) -> None:
    class Exact(Asking):
        def answer(self, turns: Sequence[str]) -> Answer:
            opening = len(job(Guessing(), codec).request.prompt_token_ids)
            answer = len(codec.encode_turn(turns[0])) + 1  # its stop token is not in the text
            return "?" * (40 - opening - answer) if len(turns) == 1 else None

    group = asyncio.run(sampled(model, Exact, codec))
    continued = [sample for sample in group.samples if len(sample.turns) == 2]
    assert continued
    for sample in continued:
        assert 40 < len(sample.token_ids) <= 48


class Wordy(Asking):
    """Item 1 opens with more than 16 tokens."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.prompt = "?" * (20 if index == 1 else 2)


def test_an_environments_prompt_that_is_too_long_names_item_and_key(model: GPT2LMHeadModel, codec: TextCodec) -> None:
    config = make_config(stop_token_ids=tuple(range(3, 50)), max_prompt_tokens=40)

    async def scenario() -> tuple[SampledGroup, Evaluation]:
        async with EngineLoop(make_engine(model, config)) as engine:
            (training,) = sample_groups(
                engine, codec, [job(Guessing(), codec, 1)], max_prompt_tokens=16, open_episode=opens(Wordy)
            )
            evaluation = await evaluate(
                engine,
                Guessing(),
                codec,
                rate,
                prompts=await encoded(Guessing(), codec, range(3)),
                sampling=Sampling(max_new_tokens=8),
                seed=0,
                label="long",
                max_prompt_tokens=16,
                limit_key="validation.sets.long.max_prompt_tokens",
                open_episode=opens(Wordy),
            )
            return await training, evaluation

    training, evaluation = asyncio.run(scenario())
    for sample in training.samples:
        said = str(sample.rated)
        assert said.startswith("item 1 was opened with a prompt of 20 tokens, and generation.max_prompt_tokens is 16;")
        assert "max_skipped_prompts" in said
    (failure,) = evaluation.failures
    assert failure == (
        "item 1 ('1:') was opened with a prompt of 20 tokens, and validation.sets.long.max_prompt_tokens is 16; raise "
        "that, or have the environment ask with less"
    )
    assert len(evaluation.prompts) == 3, "it is one rollout without verdict, and the others are measured"
    assert Wordy.open == 0


def test_an_environment_that_fails_costs_its_rollout_and_leaves_none_behind(
    model: GPT2LMHeadModel, codec: TextCodec
) -> None:
    class Broken(Asking):
        def answer(self, turns: Sequence[str]) -> Answer:
            if len(turns) == 2:
                raise DataFailure("the tool is gone")
            return super().answer(turns)

    group = asyncio.run(sampled(model, Broken, codec))
    for sample in group.samples:
        assert (sample.rated == "the tool is gone") is (len(sample.turns) == 2)

    class Shut(Asking):
        def __init__(self, index: int) -> None:
            if self.open == 2:
                raise DataFailure("only two seats")
            super().__init__(index)

    shut = asyncio.run(sampled(model, Shut, codec))
    assert [sample.rated for sample in shut.samples] == ["only two seats"] * 4

    class Arbitrary(Asking):
        def __init__(self, index: int) -> None:
            super().__init__(self.open)

    other = asyncio.run(sampled(model, Arbitrary, codec))
    assert "derive the prompt from split, seed and index alone" in str(other.samples[0].rated)


@pytest.mark.parametrize("tries", [1, 3])
def test_a_lost_environment_is_tried_again_as_often_as_asked(
    model: GPT2LMHeadModel, codec: TextCodec, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "LOST_BACKOFF_S", 0.01)
    opened: list[int] = []

    class Lost(Asking):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            opened.append(index)

        def answer(self, turns: Sequence[str]) -> Answer:
            if len(opened) <= 8:
                raise EnvironmentLost("its process is gone")
            return super().answer(turns)

    if tries == 1:
        with pytest.raises(EnvironmentLost):
            asyncio.run(sampled(model, Lost, codec, tries=tries))
    else:
        asyncio.run(sampled(model, Lost, codec, tries=tries))
    assert Lost.open == 0
    assert len(opened) == 4 * tries


def test_a_prompt_of_messages_and_answers_of_messages_go_through_the_chat_template(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    chatty = copy(tokenizer)
    chatty.chat_template = (
        "{% for message in messages %}{{ (message.role[0] | upper) + message.content + '/' }}{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}"
    )

    class Chatty(Asking):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            self.prompt = Chat(({"role": "user", "content": "hi"},))

        def answer(self, turns: Sequence[str]) -> Answer:
            return [{"role": "tool", "content": "42"}] if len(turns) == 1 else None

    class Odd(Chatty):
        def answer(self, turns: Sequence[str]) -> Answer:
            return [{"role": "tool", "content": ["no text"]}]

    codec = TextCodec(chatty)
    group = asyncio.run(sampled(model, Chatty, codec))
    for sample in group.samples:
        said = codec.decode(sample.token_ids[~sample.loss_mask])
        assert said == ("Uhi/aT42/a" if len(sample.turns) == 2 else "Uhi/a")
    odd = asyncio.run(sampled(model, Odd, codec))
    assert any("the chat template does not take" in str(sample.rated) for sample in odd.samples)


def test_a_template_that_hangs_on_an_environments_turn_costs_the_rollouts_that_got_one(model: GPT2LMHeadModel) -> None:
    class Bad(Asking):
        def answer(self, turns: Sequence[str]) -> Answer:
            return "bad"

    loops = TEMPLATES["loops"].strip()
    codec = TextCodec(character_tokenizer(), chat=True, chat_template=loops, chat_template_timeout_s=0.5)
    group = asyncio.run(sampled(model, Bad, codec))
    stopped = [sample for sample in group.samples if isinstance(sample.rated, str)]
    assert len(stopped) == sum(sample.finished for sample in group.samples) > 0
    assert all("did not end within data.chat_template_timeout_s = 0.5 s" in str(sample.rated) for sample in stopped)


def test_an_empty_turn_of_the_environment_has_its_place_among_the_turns(
    model: GPT2LMHeadModel, codec: TextCodec
) -> None:
    class Silent(Asking):
        def answer(self, turns: Sequence[str]) -> Answer:
            return ["", "?", None][len(turns) - 1]

    group = asyncio.run(sampled(model, Silent, codec))
    assert 3 in {len(sample.turns) for sample in group.samples}
    for sample in group.samples:
        assert sample.ends[-1] == len(sample.token_ids)
        parts = [sample.token_ids[begin:end] for begin, end in pairwise(sample.ends)]
        assert [codec.decode(part) for part in parts[1::2]] == ["", "?"][: len(sample.turns) - 1]
        for part, turn in zip(parts[::2], sample.turns, strict=True):
            assert codec.decode(part).startswith(turn), "a turn's tokens end with what stopped it"
