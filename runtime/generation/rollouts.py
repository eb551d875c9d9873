"""Prompt groups, from a task's item to rated rollouts.

Sampling (`sample_groups`) belongs where the engine is; rating (`score_group`) may be slow and needs no model, so it
can run elsewhere. Between them goes a SampledGroup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from runtime.generation.engine import Engine, GeneratedGroup, GeneratedSequence, GroupRequest, Sampling
from runtime.groups import Rollout, RolloutGroup
from runtime.models.text import TextCodec
from runtime.tasks.base import OwnTask, Task
from runtime.tasks.seeds import derive_seed

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class GroupJob:
    """A prompt group to roll out: the run's prompt number, the task's item, and the request that opens it."""

    prompt: int
    index: int
    request: GroupRequest


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A rollout without its reward: arrays of the same length T as in Rollout, and the policy's turns as text."""

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    finished: bool
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SampledGroup:
    """A prompt group that waits to be rated."""

    prompt: int
    index: int
    samples: tuple[Sample, ...]
    start_weight: int
    end_weight: int


def make_job(
    task: Task,
    codec: TextCodec,
    *,
    prompt: int,
    index: int,
    num_generations: int,
    sampling: Sampling,
    seed: int,
    request_id: str,
) -> GroupJob:
    """The job for item `index` of a task. Its seed is derived from `seed` and `prompt`: attempts are equal."""
    request = GroupRequest(
        request_id=request_id,
        prompt_token_ids=codec.encode_prompt(task.prompt(index)),
        num_generations=num_generations,
        seed=derive_seed(seed, "group", prompt),
        sampling=sampling,
    )
    return GroupJob(prompt=prompt, index=index, request=request)


def sample_groups(
    engine: Engine,
    task: Task,
    codec: TextCodec,
    jobs: Sequence[GroupJob],
    *,
    max_prompt_tokens: int,
    max_turns: int = 1,
) -> list[asyncio.Task[SampledGroup]]:
    """Start jobs as one submission; one task each, in their order. Cancelling a task aborts its rollouts.

    Raises what Engine.submit raises, and then nothing was started. Awaiting a task raises what Engine.submit's
    awaitables raise.
    max_prompt_tokens: a conversation ends unfinished before a turn of the environment that would exceed it, so that
    no rollout has more than max_prompt_tokens + max_new_tokens.
    """
    opened = engine.submit([job.request for job in jobs])
    return [
        asyncio.create_task(_sample(engine, task, codec, job, first, max_prompt_tokens, max_turns))
        for job, first in zip(jobs, opened, strict=True)
    ]


async def gather_or_cancel(tasks: Sequence[asyncio.Task[Result]]) -> list[Result]:
    """All results in order; or the first error, and then nothing is left running (asyncio.gather leaves the rest)."""
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


def score_group(task: OwnTask, group: SampledGroup) -> RolloutGroup:
    """Rate every sibling. Blocks for as long as the verifier does."""
    return RolloutGroup(
        prompt=group.prompt,
        rollouts=tuple(score_sample(task, group, sibling) for sibling in range(len(group.samples))),
        start_weight=group.start_weight,
        end_weight=group.end_weight,
    )


def score_sample(task: OwnTask, group: SampledGroup, sibling: int) -> Rollout:
    """Rate one sibling, so that slow verdicts on a group can be waited for at the same time."""
    sample = group.samples[sibling]
    return Rollout(
        token_ids=sample.token_ids,
        loss_mask=sample.loss_mask,
        logprobs=sample.logprobs,
        reward=task.verify(group.index, sample.turns, sibling).reward,
        finished=sample.finished,
    )


async def _sample(
    engine: Engine,
    task: Task,
    codec: TextCodec,
    job: GroupJob,
    first: Awaitable[GeneratedGroup],
    max_prompt_tokens: int,
    max_turns: int,
) -> SampledGroup:
    group = await _generated(engine, job.request, first)
    ends = await gather_or_cancel(
        [
            asyncio.create_task(
                _converse(engine, task, codec, job, sibling, sequence, group.end_weight, max_prompt_tokens, max_turns)
            )
            for sibling, sequence in enumerate(group.sequences)
        ]
    )
    return SampledGroup(
        prompt=job.prompt,
        index=job.index,
        samples=tuple(sample for sample, _ in ends),
        start_weight=group.start_weight,
        end_weight=max(end_weight for _, end_weight in ends),
    )


async def _converse(
    engine: Engine,
    task: Task,
    codec: TextCodec,
    job: GroupJob,
    sibling: int,
    sequence: GeneratedSequence,
    end_weight: int,
    max_prompt_tokens: int,
    max_turns: int,
) -> tuple[Sample, int]:
    """Carry one sibling to its end, turn by turn. Returns it, and the version that sampled its last turn.

    What was sampled is never tokenised again: each turn's tokens are appended to those before. A turn of the
    environment that does not fit is left out whole: the policy would have answered something else than was asked.
    """
    sample = _append(_opening(job.request.prompt_token_ids), sequence, codec)
    while sequence.finished and len(sample.turns) < max_turns:
        answer = task.respond(job.index, sample.turns)
        if answer is None:
            break
        inserted = codec.encode_turn(answer, int(sequence.token_ids[-1]))
        if len(sample.token_ids) + len(inserted) > max_prompt_tokens:
            return replace(sample, finished=False), end_weight
        sample = _insert(sample, inserted)
        turn = len(sample.turns)
        request = GroupRequest(
            request_id=f"{job.request.request_id}/{sibling}.{turn}",
            prompt_token_ids=sample.token_ids,
            num_generations=1,
            seed=derive_seed(job.request.seed, "turn", sibling, turn),
            sampling=job.request.sampling,
        )
        (awaitable,) = engine.submit([request])
        group = await _generated(engine, request, awaitable)
        (sequence,) = group.sequences
        sample = _append(sample, sequence, codec)
        end_weight = group.end_weight
    return sample, end_weight


async def _generated(engine: Engine, request: GroupRequest, awaitable: Awaitable[GeneratedGroup]) -> GeneratedGroup:
    """Wait for a request; being cancelled aborts it."""
    try:
        return await awaitable
    except asyncio.CancelledError:
        engine.abort(request.request_id)
        raise


def _opening(prompt_token_ids: npt.NDArray[np.int32]) -> Sample:
    tokens = len(prompt_token_ids)
    return Sample(
        token_ids=prompt_token_ids,
        loss_mask=np.zeros(tokens, dtype=np.bool_),
        logprobs=np.zeros(tokens, dtype=np.float32),
        finished=False,
        turns=(),
    )


def _append(sample: Sample, sequence: GeneratedSequence, codec: TextCodec) -> Sample:
    """The sample with another turn of the policy; a stop token ends its text and is no part of it."""
    said = sequence.token_ids[:-1] if sequence.finished else sequence.token_ids
    return Sample(
        token_ids=np.concatenate([sample.token_ids, sequence.token_ids]),
        loss_mask=np.concatenate([sample.loss_mask, np.ones(len(sequence.token_ids), dtype=np.bool_)]),
        logprobs=np.concatenate([sample.logprobs, sequence.logprobs]),
        finished=sequence.finished,
        turns=(*sample.turns, codec.decode(said)),
    )


def _insert(sample: Sample, token_ids: npt.NDArray[np.int32]) -> Sample:
    """The sample with a turn of the environment: no loss on it, and not finished until the policy has answered."""
    return Sample(
        token_ids=np.concatenate([sample.token_ids, token_ids]),
        loss_mask=np.concatenate([sample.loss_mask, np.zeros(len(token_ids), dtype=np.bool_)]),
        logprobs=np.concatenate([sample.logprobs, np.zeros(len(token_ids), dtype=np.float32)]),
        finished=False,
        turns=sample.turns,
    )
