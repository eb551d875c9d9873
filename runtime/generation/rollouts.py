"""From a task's item to a sampled prompt group.

Sampling needs the engine and runs in the generation worker. Rating needs no model, may be slow, and runs in reward
workers. A SampledGroup goes between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from runtime.generation.config import Sampling
from runtime.generation.engine import Engine, GeneratedGroup, GeneratedSequence, GroupRequest
from runtime.models.text import TextCodec
from runtime.tasks.base import Completion, Task
from runtime.tasks.split import derive_seed

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class GroupJob:
    """A prompt group to roll out: the run's prompt number, the task's item, and the first request."""

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

    @property
    def completion(self) -> Completion:
        """What is sent to be rated."""
        return Completion(self.turns, int(self.loss_mask.sum()), "stop" if self.finished else "length")

    @property
    def repetition(self) -> float:
        """The share of 4-grams of sampled tokens that occurred in the rollout before, in [0, 1]; 0 if it has none."""
        sampled = self.token_ids[self.loss_mask]
        if len(sampled) < 4:
            return 0.0
        grams = np.lib.stride_tricks.sliding_window_view(sampled, 4)
        return 1.0 - len(np.unique(grams, axis=0)) / len(grams)


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
    """The job for item `index` of a task. Its seed is derived from `seed` and `prompt`, so all attempts are equal."""
    seed = derive_seed(seed, "group", prompt)
    prompt_token_ids = codec.encode_prompt(task.opening(index))
    return GroupJob(prompt, index, GroupRequest(request_id, prompt_token_ids, num_generations, seed, sampling))


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

    Raises the errors of Engine.submit, and then starts nothing. Awaiting a task raises those of its awaitables.
    max_prompt_tokens: a conversation ends unfinished before an environment's turn that would exceed it, so no rollout
    has more than max_prompt_tokens + max_new_tokens.
    """
    opened = engine.submit([job.request for job in jobs])
    sampler = _Sampler(engine, task, codec, max_prompt_tokens, max_turns)
    return [asyncio.create_task(sampler.sample(job, first)) for job, first in zip(jobs, opened, strict=True)]


async def gather_or_cancel(tasks: Sequence[asyncio.Task[Result]]) -> list[Result]:
    """All results in order. At the first error cancels all tasks and raises it (asyncio.gather leaves them running)."""
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


@dataclass(frozen=True, slots=True)
class _Sampler:
    engine: Engine
    task: Task
    codec: TextCodec
    max_prompt_tokens: int
    max_turns: int

    async def sample(self, job: GroupJob, first: Awaitable[GeneratedGroup]) -> SampledGroup:
        group = await self._generated(job.request, first)
        conversations = [
            asyncio.create_task(self._converse(job, sibling, sequence, group.end_weight))
            for sibling, sequence in enumerate(group.sequences)
        ]
        samples, end_weights = zip(*await gather_or_cancel(conversations), strict=True)
        return SampledGroup(job.prompt, job.index, samples, group.start_weight, max(end_weights))

    async def _converse(
        self, job: GroupJob, sibling: int, sequence: GeneratedSequence, end_weight: int
    ) -> tuple[Sample, int]:
        """Sample one sibling's turns to its end. Returns it and the version that sampled its last turn.

        Sampled tokens are never tokenised again: each turn's tokens are appended. An environment's turn that does not
        fit is left out whole, since the policy would otherwise answer something that was not asked.
        """
        sample = _append(_opening(job.request.prompt_token_ids), sequence, self.codec)
        while sequence.finished and len(sample.turns) < self.max_turns:
            answer = self.task.respond(job.index, sample.turns)
            if answer is None:
                break
            inserted = self.codec.encode_turn(answer, int(sequence.token_ids[-1]))
            if len(sample.token_ids) + len(inserted) > self.max_prompt_tokens:
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
            (awaitable,) = self.engine.submit([request])
            group = await self._generated(request, awaitable)
            (sequence,) = group.sequences
            sample = _append(sample, sequence, self.codec)
            end_weight = group.end_weight
        return sample, end_weight

    async def _generated(self, request: GroupRequest, awaitable: Awaitable[GeneratedGroup]) -> GeneratedGroup:
        """Wait for a request; cancelling this aborts it."""
        try:
            return await awaitable
        except asyncio.CancelledError:
            self.engine.abort(request.request_id)
            raise


def _opening(prompt_token_ids: npt.NDArray[np.int32]) -> Sample:
    tokens = len(prompt_token_ids)
    no_loss, no_logprobs = np.zeros(tokens, dtype=np.bool_), np.zeros(tokens, dtype=np.float32)
    return Sample(prompt_token_ids, no_loss, no_logprobs, finished=False, turns=())


def _append(sample: Sample, sequence: GeneratedSequence, codec: TextCodec) -> Sample:
    """The sample with another turn of the policy. A stop token is not part of the turn's text."""
    text = sequence.token_ids[:-1] if sequence.finished else sequence.token_ids
    return Sample(
        token_ids=np.concatenate([sample.token_ids, sequence.token_ids]),
        loss_mask=np.concatenate([sample.loss_mask, np.ones(len(sequence.token_ids), dtype=np.bool_)]),
        logprobs=np.concatenate([sample.logprobs, sequence.logprobs]),
        finished=sequence.finished,
        turns=(*sample.turns, codec.decode(text)),
    )


def _insert(sample: Sample, token_ids: npt.NDArray[np.int32]) -> Sample:
    """The sample with an environment's turn: without loss, and unfinished until the policy has answered."""
    return Sample(
        token_ids=np.concatenate([sample.token_ids, token_ids]),
        loss_mask=np.concatenate([sample.loss_mask, np.zeros(len(token_ids), dtype=np.bool_)]),
        logprobs=np.concatenate([sample.logprobs, np.zeros(len(token_ids), dtype=np.float32)]),
        finished=False,
        turns=sample.turns,
    )
