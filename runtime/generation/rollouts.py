"""From a task's item to a sampled prompt group.

Sampling needs the engine and runs in the generation worker. Rating needs no model, may be slow, and runs in reward
workers; an environment rates its own rollouts. A SampledGroup goes between them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from runtime.generation.config import Sampling
from runtime.generation.engine import LONG_PROMPT_REMEDY, Engine, GeneratedGroup, GeneratedSequence, GroupRequest
from runtime.models.renderer import RenderingLost
from runtime.models.text import NotRendered, TextCodec
from runtime.tasks.base import Chat, Completion, DataFailure, Rated, Task, TaskError
from runtime.tasks.environments.host import EnvironmentLost
from runtime.tasks.environments.interface import Episode, Message
from runtime.tasks.environments.pool import TurnTooLong
from runtime.tasks.split import derive_seed
from runtime.wording import counted

Result = TypeVar("Result")
Encoded = npt.NDArray[np.int32] | DataFailure | RenderingLost
"""Token ids (P,) of a prompt, or why there are none."""
OpenEpisode = Callable[[int], Awaitable[Episode]]
"""Opens an episode of an item. Its methods raise DataFailure, EnvironmentLost and TurnTooLong."""
LIMIT_KEY = "generation.max_prompt_tokens"
"""The key of the longest prompt in training."""
LOST_BACKOFF_S = 1.0
"""Seconds before the first of the further tries of a group whose environment's process was lost; then twice that."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupJob:
    """A prompt group to roll out: the run's prompt number, the task's item, and the first request."""

    prompt: int
    index: int
    request: GroupRequest
    """Without prompt if an episode of an environment will give it."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A rollout without its reward: arrays of the same length T as in Rollout, and the policy's turns as text."""

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    finished: bool
    turns: tuple[str, ...]
    ends: tuple[int, ...]
    """Where the prompt ends in the arrays, then each turn, of policy and environment by turns; a turn may be empty."""
    rated: Rated | None = None
    """The environment's verdict, or why it has none; None if a reward worker is to rate it."""

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

    @property
    def own_verdicts(self) -> tuple[Rated, ...]:
        """The verdicts of an environment; empty if reward workers are to rate the group."""
        return tuple(sample.rated for sample in self.samples if sample.rated is not None)


async def encode_item(task: Task, codec: TextCodec, index: int) -> Encoded:
    """Token ids of an item's prompt, none for an episode of an environment; why there are none if it is not rendered.

    Waits only if the prompt goes through the chat template, whose process gets its time.
    """
    try:
        opening = task.opening(index)
        if opening is None:
            return np.zeros(0, dtype=np.int32)
        return await _in_thread(partial(codec.encode_prompt, opening), waits=codec.renders(opening))
    except (DataFailure, RenderingLost) as failure:
        return failure


async def _in_thread(encode: Callable[[], Result], *, waits: bool) -> Result:
    """What `encode` returns; made in a thread if it waits for the process that renders chat templates."""
    return await asyncio.to_thread(encode) if waits else encode()


def make_job(
    *,
    prompt: int,
    index: int,
    prompt_token_ids: npt.NDArray[np.int32],
    num_generations: int,
    sampling: Sampling,
    seed: int,
    request_id: str,
) -> GroupJob:
    """The job for item `index` of a task, which `encode_item` has encoded.

    Its seed is derived from `seed` and `prompt`, so all attempts are equal.
    """
    seed = derive_seed(seed, "group", prompt)
    return GroupJob(prompt, index, GroupRequest(request_id, prompt_token_ids, num_generations, seed, sampling))


def sample_groups(
    engine: Engine,
    codec: TextCodec,
    jobs: Sequence[GroupJob],
    *,
    max_prompt_tokens: int,
    max_turns: int = 1,
    open_episode: OpenEpisode | None = None,
    tries: int = 1,
    limit_key: str = LIMIT_KEY,
    where: Callable[[int], str] = "item {}".format,
) -> list[asyncio.Task[SampledGroup]]:
    """Start jobs as one submission; one task each, in their order. Cancelling a task aborts its rollouts.

    Raises the errors of Engine.submit, and then starts nothing. Awaiting a task raises those of its awaitables.
    max_prompt_tokens: a conversation ends unfinished before an environment's turn that would exceed it, so no rollout
    has more than max_prompt_tokens + max_new_tokens.
    open_episode: for a task whose rollouts are episodes of an environment. Each is rated, or says why it is not.
    Awaiting a task raises EnvironmentLost after so many `tries`.
    limit_key, where: how messages name `max_prompt_tokens` and an item.
    """
    if open_episode is not None:
        sampler = _EpisodeSampler(engine, codec, open_episode, max_prompt_tokens, max_turns, tries, limit_key, where)
        return [asyncio.create_task(sampler.sample(job)) for job in jobs]
    opened = engine.submit([job.request for job in jobs])
    return [asyncio.create_task(_sample(engine, codec, job, first)) for job, first in zip(jobs, opened, strict=True)]


async def gather_or_cancel(tasks: Sequence[asyncio.Task[Result]]) -> list[Result]:
    """All results in order. At the first error cancels all tasks and raises it (asyncio.gather leaves them running)."""
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


async def _sample(engine: Engine, codec: TextCodec, job: GroupJob, first: Awaitable[GeneratedGroup]) -> SampledGroup:
    group = await _generated(engine, job.request, first)
    opening = _opening(job.request.prompt_token_ids)
    samples = tuple(_append(opening, sequence, codec) for sequence in group.sequences)
    return SampledGroup(job.prompt, job.index, samples, group.start_weight, group.end_weight)


async def _generated(engine: Engine, request: GroupRequest, awaitable: Awaitable[GeneratedGroup]) -> GeneratedGroup:
    """Wait for a request; cancelling this aborts it."""
    try:
        return await awaitable
    except asyncio.CancelledError:
        engine.abort(request.request_id)
        raise


@dataclass(frozen=True, slots=True)
class _EpisodeSampler:
    engine: Engine
    codec: TextCodec
    open_episode: OpenEpisode
    max_prompt_tokens: int
    max_turns: int
    tries: int
    limit_key: str
    where: Callable[[int], str]

    async def sample(self, job: GroupJob) -> SampledGroup:
        for tried in count(1):
            try:
                return await self._sample(job)
            except EnvironmentLost:
                if tried >= self.tries:
                    raise
            await asyncio.sleep(LOST_BACKOFF_S * 2 ** (tried - 1))
        raise AssertionError("unreachable")

    async def _sample(self, job: GroupJob) -> SampledGroup:
        """Open an episode for each sibling, sample their first turns together, and then each by itself."""
        siblings = job.request.num_generations
        opening = [asyncio.create_task(self._open(job.index)) for _ in range(siblings)]
        try:
            episodes = await gather_or_cancel(opening)
            request = replace(job.request, prompt_token_ids=await self._prompt(job.index, episodes))
            (first,) = self.engine.submit([request])
            group = await _generated(self.engine, request, first)
            conversations = [
                asyncio.create_task(self._converse(request, sibling, episode, sequence, group.end_weight))
                for sibling, (episode, sequence) in enumerate(zip(episodes, group.sequences, strict=True))
            ]
            samples, end_weights = zip(*await _ended(conversations), strict=True)
        except DataFailure as failure:
            now = self.engine.health().version
            return failed_group(job.prompt, job.index, siblings, str(failure), now)
        finally:
            for task in opening:
                if task.done() and not task.cancelled() and task.exception() is None:
                    await task.result().close()
        return SampledGroup(job.prompt, job.index, samples, group.start_weight, max(end_weights))

    async def _open(self, index: int) -> Episode:
        return await self.open_episode(index)

    async def _prompt(self, index: int, episodes: Sequence[Episode]) -> npt.NDArray[np.int32]:
        """Raises DataFailure if siblings were not asked the same, or at too great a length."""
        for episode in episodes:
            if episode.prompt != episodes[0].prompt:
                raise DataFailure(
                    f"{self.where(index)} was opened with the prompt {episodes[0].prompt!r:.200} and with "
                    f"{episode.prompt!r:.200}; derive the prompt from split, seed and index alone"
                )
        opening = episodes[0].prompt
        prompt = await _encoded(partial(self.codec.encode_prompt, opening), waits=self.codec.renders(opening))
        if len(prompt) > self.max_prompt_tokens:
            skipped = f", or {LONG_PROMPT_REMEDY}" if self.limit_key == LIMIT_KEY else ""
            raise DataFailure(
                f"{self.where(index)} was opened with a prompt of {counted(len(prompt), 'token')}, and "
                f"{self.limit_key} is {self.max_prompt_tokens}; raise that, or have the environment "
                f"ask with less{skipped}"
            )
        return prompt

    async def _converse(
        self, asked: GroupRequest, sibling: int, episode: Episode, sequence: GeneratedSequence, end_weight: int
    ) -> tuple[Sample, int]:
        """Sample one sibling's turns to its end. Returns it and the version that sampled its last turn.

        Sampled tokens are never tokenised again: each turn's tokens are appended. An environment's turn that does not
        fit is left out whole, since the policy would otherwise answer something that was not asked.
        """
        sample = _append(_opening(asked.prompt_token_ids), sequence, self.codec)
        try:
            while sequence.finished and len(sample.turns) < self.max_turns:
                answered = await self._answered(sample, episode)
                if answered is None:
                    break
                if len(answered.token_ids) > self.max_prompt_tokens:
                    sample = replace(sample, finished=False)
                    break
                turn = len(answered.turns)
                request = GroupRequest(
                    request_id=f"{asked.request_id}/{sibling}.{turn}",
                    prompt_token_ids=answered.token_ids,
                    num_generations=1,
                    seed=derive_seed(asked.seed, "turn", sibling, turn),
                    sampling=asked.sampling,
                )
                (awaitable,) = self.engine.submit([request])
                group = await _generated(self.engine, request, awaitable)
                (sequence,) = group.sequences
                sample, end_weight = _append(answered, sequence, self.codec), group.end_weight
            rated: Rated = await episode.verdict(sample.completion)
        except DataFailure as failure:
            rated = str(failure)
        return replace(sample, rated=rated), end_weight

    async def _answered(self, sample: Sample, episode: Episode) -> Sample | None:
        """The sample with the environment's turn, of any length; None if the episode is over."""
        try:
            answer = await episode.respond(sample.turns[-1])
        except TurnTooLong:
            return _insert(sample, np.zeros(self.max_prompt_tokens + 1, dtype=np.int32))
        if answer is None:
            return None
        encoded = await encoded_answer(self.codec, episode.prompt, answer, int(sample.token_ids[-1]))
        return _insert(sample, encoded)


async def _ended(conversations: Sequence[asyncio.Task[tuple[Sample, int]]]) -> list[tuple[Sample, int]]:
    """The ends of a group's conversations. Raises EnvironmentLost unless a sibling is to blame for the loss."""
    try:
        await asyncio.wait(conversations)
    except asyncio.CancelledError:
        for conversation in conversations:
            conversation.cancel()
        await asyncio.wait(conversations)
        raise
    errors = [error for conversation in conversations if (error := conversation.exception()) is not None]
    ended = [conversation.result() for conversation in conversations if conversation.exception() is None]
    for error in errors:
        if not isinstance(error, EnvironmentLost) or not any(isinstance(sample.rated, str) for sample, _ in ended):
            raise error
    return [*ended, *((_failed(str(error)), 0) for error in errors)]


def failed_group(prompt: int, index: int, siblings: int, why: str, version: int) -> SampledGroup:
    """A group of which no rollout has a verdict, nor any tokens."""
    return SampledGroup(prompt, index, (_failed(why),) * siblings, version, version)


def _failed(why: str) -> Sample:
    """A rollout of which nothing is left."""
    return replace(_opening(np.zeros(0, dtype=np.int32)), rated=why)


async def encoded_answer(
    codec: TextCodec, prompt: str | Chat, answer: str | Sequence[Message], ended_with: int | None = None
) -> npt.NDArray[np.int32]:
    """Token ids (T,) of an environment's answer in an episode with this prompt.

    ended_with: the stop token of the turn that it answers. Raises DataFailure if the chat template does not take the
    answer's messages, and TaskError if there is no template.
    """
    in_chat = codec.renders(prompt)
    encode = partial(codec.encode_turn, answer, ended_with, in_chat=in_chat)
    return await _encoded(encode, waits=in_chat or not isinstance(answer, str))


async def _encoded(encode: Callable[[], npt.NDArray[np.int32]], *, waits: bool) -> npt.NDArray[np.int32]:
    """What `encode` returns. Raises DataFailure if the chat template does not take the environment's messages."""
    try:
        return await _in_thread(encode, waits=waits)
    except TaskError:
        raise
    except (NotRendered, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, NotRendered) and not error.refused:
            raise
        happened = error.happened if isinstance(error, NotRendered) else f"{type(error).__name__}: {error}"
        raise DataFailure(
            f"the chat template does not take the environment's messages ({happened}); give messages with roles and "
            "contents that it knows"
        ) from error


def _opening(prompt_token_ids: npt.NDArray[np.int32]) -> Sample:
    tokens = len(prompt_token_ids)
    no_loss, no_logprobs = np.zeros(tokens, dtype=np.bool_), np.zeros(tokens, dtype=np.float32)
    return Sample(prompt_token_ids, no_loss, no_logprobs, finished=False, turns=(), ends=(tokens,))


def _append(sample: Sample, sequence: GeneratedSequence, codec: TextCodec) -> Sample:
    """The sample with another turn of the policy. A stop token is not part of the turn's text."""
    text = sequence.token_ids[:-1] if sequence.finished else sequence.token_ids
    return Sample(
        token_ids=np.concatenate([sample.token_ids, sequence.token_ids]),
        loss_mask=np.concatenate([sample.loss_mask, np.ones(len(sequence.token_ids), dtype=np.bool_)]),
        logprobs=np.concatenate([sample.logprobs, sequence.logprobs]),
        finished=sequence.finished,
        turns=(*sample.turns, codec.decode(text)),
        ends=(*sample.ends, len(sample.token_ids) + len(sequence.token_ids)),
    )


def _insert(sample: Sample, token_ids: npt.NDArray[np.int32]) -> Sample:
    """The sample with an environment's turn: without loss, and unfinished until the policy has answered."""
    return Sample(
        token_ids=np.concatenate([sample.token_ids, token_ids]),
        loss_mask=np.concatenate([sample.loss_mask, np.zeros(len(token_ids), dtype=np.bool_)]),
        logprobs=np.concatenate([sample.logprobs, np.zeros(len(token_ids), dtype=np.float32)]),
        finished=False,
        turns=sample.turns,
        ends=(*sample.ends, len(sample.token_ids) + len(token_ids)),
    )
