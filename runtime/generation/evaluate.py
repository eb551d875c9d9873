"""Held-out prompts rolled out and rated under the weights that an engine runs, beside its other work."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from runtime.generation.config import Sampling
from runtime.generation.engine import Engine
from runtime.generation.rollouts import (
    Encoded,
    GroupJob,
    OpenEpisode,
    SampledGroup,
    failed_group,
    gather_or_cancel,
    make_job,
    sample_groups,
)
from runtime.groups import Evaluation, HeldOutPrompt, HeldOutRollout
from runtime.models.text import TextCodec
from runtime.tasks.base import Rated, Scored, Task

RateGroups = Callable[[Sequence[SampledGroup]], Awaitable[Scored]]
"""Rates groups of held-out prompts."""
EPISODE_TRIES = 8
"""Tries of a group whose environment's processes die."""


async def evaluate(
    engine: Engine,
    task: Task,
    codec: TextCodec,
    rate: RateGroups,
    *,
    prompts: Mapping[int, Encoded],
    sampling: Sampling,
    seed: int,
    label: str,
    max_prompt_tokens: int,
    rollouts_per_prompt: int = 1,
    max_turns: int = 1,
    ended: Callable[[HeldOutPrompt], None] = lambda prompt: None,
    open_episode: OpenEpisode | None = None,
    limit_key: str = "validation.max_prompt_tokens",
) -> Evaluation:
    """Roll out items of a task (usually its validation split), and rate groups while others are generated.

    prompts: the items, by index, as `encode_item` gives them.
    sampling: as in training, to compare with its rewards, or temperature 0 for greedy decoding.
    ended: called with each prompt once it is rated.
    label: begins the request ids; no other request in flight may begin with it.
    The same seed, weights and sampling give the same completions, as far as floating point allows.
    open_episode: for the task of an environment, as in sample_groups. One that asks with more than max_prompt_tokens
    has no verdict; its message names limit_key.
    A prompt that cannot be read, as of a file that was changed, counts as rollouts without verdict.
    Raises ValueError without prompts, and the errors of sample_groups and `rate`.
    """
    if not prompts:
        raise ValueError(f"evaluation {label!r} has no prompts; set data.validation_size above 0")
    jobs: list[GroupJob] = []
    unread: list[SampledGroup] = []
    for index, encoded in prompts.items():
        if isinstance(encoded, Exception):  # such as a file that was changed
            unread.append(failed_group(index, index, rollouts_per_prompt, str(encoded), engine.health().version))
            continue
        jobs.append(
            make_job(
                prompt=index,
                index=index,
                prompt_token_ids=encoded,
                num_generations=rollouts_per_prompt,
                sampling=sampling,
                seed=seed,
                request_id=f"{label}-{index}",
            )
        )
    sampling_groups = sample_groups(
        engine,
        codec,
        jobs,
        max_prompt_tokens=max_prompt_tokens,
        max_turns=max_turns,
        open_episode=open_episode,
        tries=EPISODE_TRIES,
        limit_key=limit_key,
        where=task.where,
    )
    try:
        groups, rated, notices = await _rate_as_they_end(sampling_groups, unread, rate, ended)
    except BaseException:
        for sampled in sampling_groups:
            sampled.cancel()
        if sampling_groups:
            await asyncio.wait(sampling_groups)
        raise
    return Evaluation(
        prompts=tuple(sorted(rated, key=lambda prompt: prompt.index)),
        start_weight=min(group.start_weight for group in groups),
        end_weight=max(group.end_weight for group in groups),
        notices=tuple(notices),
    )


async def _rate_as_they_end(
    sampled: Sequence[asyncio.Task[SampledGroup]],
    unread: Sequence[SampledGroup],
    rate: RateGroups,
    ended: Callable[[HeldOutPrompt], None],
) -> tuple[list[SampledGroup], list[HeldOutPrompt], list[str]]:
    """One call rates all groups that end in the same turn of the loop. Cancels its calls if one fails.

    unread: groups whose prompt could not be read. They say why they have no verdict.
    Returns the groups, the same rated, and the messages of reward workers.
    """
    groups = list(unread)
    prompts = [_rated(group, group.own_verdicts) for group in unread]
    for prompt in prompts:
        ended(prompt)
    notices: list[str] = []

    async def rate_together(together: Sequence[SampledGroup]) -> None:
        own = [group.own_verdicts for group in together]
        scored = Scored(own, None) if all(own) else await rate(together)
        notices.extend([] if scored.notice is None else [scored.notice])
        for group, verdicts in zip(together, scored.groups, strict=True):
            prompts.append(_rated(group, verdicts))
            ended(prompts[-1])

    rating: list[asyncio.Task[None]] = []
    pending = set(sampled)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            together = [task.result() for task in sampled if task in done]
            groups += together
            rating.append(asyncio.create_task(rate_together(together)))
    except BaseException:
        for call in rating:
            call.cancel()
        raise
    await gather_or_cancel(rating)
    return groups, prompts, notices


def _rated(group: SampledGroup, verdicts: Sequence[Rated]) -> HeldOutPrompt:
    rollouts = (
        HeldOutRollout(verdict, sample.completion.tokens, sample.finished, sample.turns)
        for sample, verdict in zip(group.samples, verdicts, strict=True)
    )
    return HeldOutPrompt(group.index, tuple(rollouts))
