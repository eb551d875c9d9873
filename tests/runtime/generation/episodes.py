"""Episodes of a small environment, and groups that are rolled out and rated over the engine."""

from collections.abc import Iterable, Sequence

import numpy as np
from transformers import GPT2LMHeadModel

from runtime.generation.config import Sampling
from runtime.generation.on_torch.loop import EngineLoop
from runtime.generation.rollouts import (
    Encoded,
    GroupJob,
    OpenEpisode,
    SampledGroup,
    encode_item,
    make_job,
    sample_groups,
)
from runtime.groups import Rollout, RolloutGroup
from runtime.models.text import TextCodec
from runtime.tasks.base import Chat, Completion, OwnTask, Scored, Task, Verdict
from runtime.tasks.environments.interface import Answer, Episode
from tests.runtime.generation.helpers import make_config, make_engine


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


def job(task: Task, codec: TextCodec, prompt: int = 0, **options: object) -> GroupJob:
    sampling = Sampling(**{"max_new_tokens": 8, **options})  # type: ignore[arg-type]
    index = prompt % task.num_prompts
    opening = task.opening(index)
    return make_job(
        prompt=prompt,
        index=index,
        prompt_token_ids=np.zeros(0, dtype=np.int32) if opening is None else codec.encode_prompt(opening),
        num_generations=4,
        sampling=sampling,
        seed=1,
        request_id=f"g{prompt}",
    )


async def encoded(task: Task, codec: TextCodec, indices: Iterable[int]) -> dict[int, Encoded]:
    return {index: await encode_item(task, codec, index) for index in indices}


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
