"""Held-out accuracy of the weights that an engine runs, without interrupting its other work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from runtime.generation.config import Sampling
from runtime.generation.engine import Engine
from runtime.generation.rollouts import SampledGroup, gather_or_cancel, make_job, sample_groups
from runtime.groups import Evaluation
from runtime.models.text import TextCodec
from runtime.tasks.base import Scored, Task

RateGroups = Callable[[Sequence[SampledGroup]], Awaitable[Scored]]
"""Rates groups of held-out prompts."""


async def evaluate(
    engine: Engine,
    task: Task,
    codec: TextCodec,
    rate: RateGroups,
    *,
    indices: Sequence[int],
    sampling: Sampling,
    seed: int,
    label: str,
    max_prompt_tokens: int,
    rollouts_per_prompt: int = 1,
    max_turns: int = 1,
) -> Evaluation:
    """Roll out items of a task (usually its validation split), and rate groups while others are generated.

    sampling: as in training, to compare with its rewards, or temperature 0 for greedy decoding.
    label: begins the request ids; no other request in flight may begin with it.
    The same seed, weights and sampling give the same completions, as far as floating point allows.
    A rollout without a verdict counts as wrong, and in `without_verdict`.
    Raises ValueError without indices, and the errors of sample_groups and `rate`.
    """
    if not indices:
        raise ValueError(f"evaluation {label!r} has no prompts; set data.validation_size above 0")
    jobs = [
        make_job(
            task,
            codec,
            prompt=index,
            index=index,
            num_generations=rollouts_per_prompt,
            sampling=sampling,
            seed=seed,
            request_id=f"{label}-{index}",
        )
        for index in indices
    ]
    sampling_groups = sample_groups(engine, task, codec, jobs, max_prompt_tokens=max_prompt_tokens, max_turns=max_turns)
    try:
        groups, scores = await _rate_as_they_end(sampling_groups, rate)
    except BaseException:
        for sampled in sampling_groups:
            sampled.cancel()
        await asyncio.wait(sampling_groups)
        raise
    rated = [verdict for scored in scores for siblings in scored.groups for verdict in siblings]
    failures = [verdict for verdict in rated if isinstance(verdict, str)]
    verdicts = [verdict for verdict in rated if not isinstance(verdict, str)]
    return Evaluation(
        accuracy=sum(verdict.correct for verdict in verdicts) / len(rated),
        mean_reward=sum(verdict.reward for verdict in verdicts) / len(rated),
        prompts=len(indices),
        rollouts=len(rated),
        start_weight=min(group.start_weight for group in groups),
        end_weight=max(group.end_weight for group in groups),
        without_verdict=len(failures),
        first_failure=failures[0] if failures else None,
        notices=tuple(scored.notice for scored in scores if scored.notice is not None),
    )


async def _rate_as_they_end(
    sampled: Sequence[asyncio.Task[SampledGroup]], rate: RateGroups
) -> tuple[list[SampledGroup], list[Scored]]:
    """One call rates all groups that end in the same turn of the loop. Cancels its calls if one fails."""
    groups: list[SampledGroup] = []
    rating: list[asyncio.Task[Scored]] = []
    pending = set(sampled)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            together = [task.result() for task in sampled if task in done]
            groups += together
            rating.append(asyncio.ensure_future(rate(together)))
    except BaseException:
        for call in rating:
            call.cancel()
        raise
    return groups, await gather_or_cancel(rating)
