"""Groups from a task's items to rated rollouts, over the engine inside an event loop."""

import asyncio

import pytest
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from runtime.generation.on_torch.loop import EngineLoop
from runtime.generation.rollouts import sample_groups
from runtime.models.text import TextCodec, make_codec
from runtime.tasks.base import OwnTask, TaskError
from runtime.tasks.config import DataConfig
from runtime.tasks.data import load_task
from tests.runtime.generation.episodes import Asking, Guessing, job, opens, sampled, score_group
from tests.runtime.generation.helpers import END, make_engine


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
