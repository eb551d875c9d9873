"""Groups from a task's items to rated rollouts, over the engine inside an event loop."""

import asyncio
from collections.abc import Sequence
from copy import copy

import numpy as np
import pytest
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from runtime.generation import rollouts
from runtime.generation.config import Sampling
from runtime.generation.engine import GeneratedSequence, GenerationAborted, PolicyNotFinite, PromptTooLong
from runtime.generation.evaluate import evaluate
from runtime.generation.on_torch.loop import EngineLoop
from runtime.generation.rollouts import GroupJob, OpenEpisode, SampledGroup, make_job, sample_groups
from runtime.groups import Evaluation, Rollout, RolloutGroup
from runtime.models.text import TextCodec, make_codec
from runtime.models.weights import export_weights
from runtime.tasks.base import Chat, Completion, DataFailure, OwnTask, Scored, Task, TaskError, Verdict
from runtime.tasks.config import DataConfig
from runtime.tasks.data import load_task
from runtime.tasks.environments.host import EnvironmentLost
from runtime.tasks.environments.interface import Answer, Episode
from runtime.training.batching import training_sequences
from runtime.training.config import LossConfig
from tests.runtime.generation.helpers import END, make_config, make_engine, make_request, plain_logprobs


class Guessing(OwnTask):
    """Ten prompts; the reward is a third a turn."""

    @property
    def num_prompts(self) -> int:
        return 10

    def prompt(self, index: int) -> str:
        return f"{index}:"

    def verify(self, index: int, completion: Completion, sibling: int) -> Verdict:
        turns = len(completion.turns)
        return Verdict(reward=turns / 3, correct=turns == 3)


class Asking(Episode):
    """Answers `?` until the policy has spoken three times; the reward is a third a turn."""

    open = 0

    def __init__(self, index: int) -> None:
        self.prompt: str | Chat = Guessing().prompt(index)
        self.turns: list[str] = []
        type(self).open += 1

    def answer(self, turns: Sequence[str]) -> Answer:
        return "?" if len(turns) < 3 else None

    async def respond(self, turn: str) -> Answer:
        self.turns.append(turn)
        return self.answer(self.turns)

    async def verdict(self, completion: Completion) -> Verdict:
        return Guessing().verify(0, completion, 0)

    async def close(self) -> None:
        type(self).open -= 1


def opens(episode: type[Asking]) -> OpenEpisode:
    async def open_episode(index: int) -> Episode:
        return episode(index)

    return open_episode


async def rate(groups: Sequence[SampledGroup]) -> Scored:
    def rated(group: SampledGroup) -> tuple[Verdict, ...]:
        return tuple(Guessing().verify(group.index, sample.completion, 0) for sample in group.samples)

    return Scored([rated(group) for group in groups], None)


@pytest.fixture
def codec(tokenizer: PreTrainedTokenizerFast) -> TextCodec:
    return TextCodec(tokenizer)


def job(task: Task, codec: TextCodec, prompt: int = 0, **options: object) -> GroupJob:
    sampling = Sampling(**{"max_new_tokens": 8, **options})  # type: ignore[arg-type]
    return make_job(
        task,
        codec,
        prompt=prompt,
        index=prompt % task.num_prompts,
        num_generations=4,
        sampling=sampling,
        seed=1,
        request_id=f"g{prompt}",
    )


async def sampled(
    model: GPT2LMHeadModel, episode: type[Asking] | None, codec: TextCodec, task: Task | None = None, **options: int
) -> SampledGroup:
    # Half of the alphabet stops, so that most turns finish.
    config = make_config(stop_token_ids=tuple(range(3, 50)), max_prompt_tokens=40)
    async with EngineLoop(make_engine(model, config)) as engine:
        (group,) = sample_groups(
            engine,
            codec,
            [job(task or Guessing(), codec)],
            open_episode=None if episode is None else opens(episode),
            **{"max_prompt_tokens": 40, "max_turns": 8, **options},
        )
        done = await group
    assert episode is None or episode.open == 0
    return done


def score_group(task: OwnTask, group: SampledGroup) -> RolloutGroup:
    rollouts = tuple(
        Rollout(
            sample.token_ids,
            sample.loss_mask,
            sample.logprobs,
            task.verify(group.index, sample.completion, sibling).reward,
            sample.finished,
        )
        for sibling, sample in enumerate(group.samples)
    )
    return RolloutGroup(group.prompt, rollouts, group.start_weight, group.end_weight)


def test_a_scored_group_has_prompt_mask_logprobs_and_rewards_in_line(model: GPT2LMHeadModel, codec: TextCodec) -> None:
    task = load_task(DataConfig(num_prompts=20, validation_size=0), "training")
    assert isinstance(task, OwnTask)
    group = asyncio.run(sampled(model, None, codec, task))
    scored = score_group(task, group)
    prompt = codec.encode_prompt(task.prompt(0))
    assert (scored.prompt, scored.start_weight, scored.end_weight, len(scored.rollouts)) == (0, 0, 0, 4)
    for rollout in scored.rollouts:
        assert len(rollout.token_ids) == len(rollout.loss_mask) == len(rollout.logprobs)
        assert rollout.token_ids[: len(prompt)].tolist() == prompt.tolist()
        assert not rollout.loss_mask[: len(prompt)].any()
        assert rollout.loss_mask[len(prompt) :].all()
        assert (rollout.logprobs[~rollout.loss_mask] == 0).all()
        assert (rollout.logprobs[rollout.loss_mask] < 0).all()
        assert rollout.reward in (0.0, 1.0)


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
                indices=range(3),
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


def test_the_same_seed_and_prompt_give_the_same_group(model: GPT2LMHeadModel, codec: TextCodec) -> None:
    first, again = (asyncio.run(sampled(model, Asking, codec)) for _ in range(2))
    assert [sample.turns for sample in first.samples] == [sample.turns for sample in again.samples]
    assert job(Guessing(), codec, 3).request.seed != job(Guessing(), codec, 13).request.seed


def test_cancelling_a_group_aborts_its_rollouts_and_the_rest_go_on(model: GPT2LMHeadModel, codec: TextCodec) -> None:
    async def scenario() -> None:
        async with EngineLoop(make_engine(model)) as engine:
            jobs = [job(Guessing(), codec, prompt) for prompt in range(2)]
            gone, stays = sample_groups(engine, codec, jobs, max_prompt_tokens=16, open_episode=opens(Asking))
            await asyncio.sleep(0)
            gone.cancel()
            assert len((await stays).samples) == 4
            assert gone.cancelled()
            health = engine.health()
            assert (health.active_sequences, health.waiting_groups) == (0, 0)

    asyncio.run(scenario())


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
    assert group.opening == Chat(({"role": "user", "content": "hi"},))
    for sample in group.samples:
        said = codec.decode(sample.token_ids[~sample.loss_mask])
        assert said == ("Uhi/aT42/a" if len(sample.turns) == 2 else "Uhi/a")
    odd = asyncio.run(sampled(model, Odd, codec))
    assert any("the chat template does not take" in str(sample.rated) for sample in odd.samples)


def test_whoever_awaits_an_aborted_or_failed_request_is_told(model: GPT2LMHeadModel) -> None:
    async def scenario() -> None:
        async with EngineLoop(make_engine(model)) as engine:
            (aborted,) = engine.submit([make_request("a")])
            await asyncio.sleep(0)
            assert engine.abort("a")
            assert not engine.abort("a")
            with pytest.raises(GenerationAborted, match="'a' was aborted"):
                await aborted
            with pytest.raises(PromptTooLong):
                engine.submit([make_request("b", [5] * 17)])
            good = export_weights(model)
            await engine.load_weights({name: np.full_like(array, np.nan) for name, array in good.items()}, 1)
            (failed,) = engine.submit([make_request("c")])
            with pytest.raises(PolicyNotFinite, match="weight version 1"):
                await failed
            assert await engine.load_weights(good, 2) == 2
            (fine,) = engine.submit([make_request("d")])
            assert (await fine).end_weight == 2
            (cut,) = engine.submit([make_request("e")])
        with pytest.raises(GenerationAborted, match="'e'"):
            await cut

    asyncio.run(scenario())


def test_weights_load_between_two_steps_of_a_group_in_flight(model: GPT2LMHeadModel) -> None:
    async def scenario() -> tuple[int, int]:
        async with EngineLoop(make_engine(model)) as engine:
            (future,) = engine.submit([make_request("g")])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not future.done()
            await engine.load_weights(export_weights(model), 1)
            group = await future
            return group.start_weight, group.end_weight

    assert asyncio.run(scenario()) == (0, 1)


def test_evaluation_counts_correct_rollouts_beside_other_work(model: GPT2LMHeadModel, codec: TextCodec) -> None:
    async def scenario() -> None:
        config = make_config(stop_token_ids=tuple(range(3, 50)), max_prompt_tokens=40)
        async with EngineLoop(make_engine(model, config, version=6)) as engine:
            (training,) = engine.submit([make_request("g0")])
            results = [
                await evaluate(
                    engine,
                    Guessing(),
                    codec,
                    rate,
                    indices=range(5),
                    sampling=Sampling(temperature=temperature, max_new_tokens=12),
                    seed=0,
                    label="validation",
                    max_prompt_tokens=40,
                    rollouts_per_prompt=2,
                    max_turns=3,
                )
                for temperature in (1.0, 1.0, 0.0)
            ]
            assert results[0] == results[1]
            assert (len(results[0].prompts), len(results[0].rollouts)) == (5, 10)
            assert (results[0].start_weight, results[0].end_weight) == (6, 6)
            assert 0 < results[0].mean_reward <= 1
            assert results[0].accuracy <= results[0].mean_reward
            await training
            with pytest.raises(ValueError, match="'empty' has no prompts"):
                await evaluate(
                    engine,
                    Guessing(),
                    codec,
                    rate,
                    indices=[],
                    sampling=Sampling(),
                    seed=0,
                    label="empty",
                    max_prompt_tokens=40,
                )

    asyncio.run(scenario())


def test_a_rollout_without_a_verdict_counts_as_wrong_and_slow_verdicts_hold_up_no_generation(
    model: GPT2LMHeadModel, codec: TextCodec
) -> None:
    rated: list[int] = []
    all_sampled = asyncio.Event()

    async def late(groups: Sequence[SampledGroup]) -> Scored:
        rated.extend(group.index for group in groups)
        if len(rated) == 5:
            all_sampled.set()
        await all_sampled.wait()
        return Scored(
            [
                ("line 3: it hangs",) if group.index == 3 else (Verdict(-2.0, True, {f"part {group.index % 2}": 1.0}),)
                for group in groups
            ],
            "it prints",
        )

    async def scenario() -> None:
        config = make_config(stop_token_ids=tuple(range(3, 50)), max_prompt_tokens=40, max_batch_sequences=2)
        async with EngineLoop(make_engine(model, config)) as engine:
            evaluation = await evaluate(
                engine,
                Guessing(),
                codec,
                late,
                indices=range(5),
                sampling=Sampling(max_new_tokens=12),
                seed=0,
                label="validation",
                max_prompt_tokens=40,
                max_turns=3,
            )
        assert (evaluation.accuracy, evaluation.mean_reward) == (0.8, -2.0)
        assert evaluation.failures == ("line 3: it hangs",)
        assert set(evaluation.notices) == {"it prints"}

    asyncio.run(asyncio.wait_for(scenario(), timeout=120))


CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_a_chat_template_wraps_prompts_and_later_turns_alike(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = CHAT
    try:
        codec = make_codec(
            tokenizer, DataConfig(chat=True, system_prompt="be brief", prompt_template="Q: {prompt}", validation_size=0)
        )
        opening = tokenizer.decode(codec.encode_prompt("hi {name}"))
        assert opening == "[system]be brief<end>\n[user]Q: hi {name}<end>\n[assistant]"
        # The completion before ended with its own <end>.
        turn = codec.encode_turn("more").tolist()
        assert END not in turn[:1] or tokenizer.decode(turn).startswith("<end>") is False
        assert tokenizer.decode(turn) == "\n[user]more<end>\n[assistant]"
    finally:
        tokenizer.chat_template = None


def test_a_chat_without_a_template_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TaskError, match="has no chat template; use an instruction-tuned model"):
        make_codec(tokenizer, DataConfig(chat=True))


class Gone(Guessing):
    def opening(self, index: int) -> str:
        if index in (1, 3):
            raise DataFailure(f"data.jsonl:{index + 1}: the file was changed while the run reads from it")
        return self.prompt(index)


@pytest.mark.parametrize("indices", [range(4), [1, 3]])
def test_a_held_out_prompt_that_cannot_be_read_is_rollouts_without_verdict(
    model: GPT2LMHeadModel, codec: TextCodec, indices: Sequence[int]
) -> None:
    async def right(groups: Sequence[SampledGroup]) -> Scored:
        return Scored([(Verdict(1.0, True),) * len(group.samples) for group in groups], None)

    async def scenario() -> None:
        ended: list[int] = []
        async with EngineLoop(make_engine(model, make_config(max_prompt_tokens=40), version=6)) as engine:
            evaluation = await evaluate(
                engine,
                Gone(),
                codec,
                right,
                indices=indices,
                sampling=Sampling(max_new_tokens=12),
                seed=0,
                label="validation",
                max_prompt_tokens=40,
                rollouts_per_prompt=2,
                ended=lambda prompt: ended.append(prompt.index),
            )
        assert [prompt.index for prompt in evaluation.prompts] == sorted(ended) == list(indices)
        assert len(evaluation.failures) == 4
        assert evaluation.failures[0].startswith("data.jsonl:2: the file was changed")
        assert evaluation.accuracy == (len(indices) - 2) / len(indices)
        assert evaluation.start_weight == evaluation.end_weight == 6

    asyncio.run(scenario())
