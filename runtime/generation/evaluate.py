"""Held-out accuracy of whatever weights an engine runs, beside its other work."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.generation.engine import Engine, Sampling
from runtime.generation.evaluation import Evaluation
from runtime.generation.rollouts import gather_or_cancel, make_job, sample_groups
from runtime.generation.text import TextCodec
from runtime.tasks.base import Task
from runtime.tasks.errors import VerifierFailed


async def evaluate(
    engine: Engine,
    task: Task,
    codec: TextCodec,
    *,
    indices: Sequence[int],
    sampling: Sampling,
    seed: int,
    label: str,
    max_prompt_tokens: int,
    rollouts_per_prompt: int = 1,
    max_turns: int = 1,
) -> Evaluation:
    """Roll out items of a task (usually its validation split) and rate them here.

    sampling: as in training to compare with its rewards, or temperature 0 for greedy decoding.
    label: begins the request ids, and must differ from every other in flight.
    The same seed, weights and sampling give the same completions as far as floating point allows, so two
    evaluations differ by the weights and not by the draw.
    Raises ValueError without indices, what sample_groups raises, and VerifierFailed.
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
    groups = await gather_or_cancel(
        sample_groups(engine, task, codec, jobs, max_prompt_tokens=max_prompt_tokens, max_turns=max_turns)
    )
    try:
        verdicts = [
            task.verify(group.index, sample.turns, sibling)
            for group in groups
            for sibling, sample in enumerate(group.samples)
        ]
    except VerifierFailed as failure:
        raise VerifierFailed(f"validation {label!r}: {failure}") from failure
    return Evaluation(
        accuracy=sum(verdict.correct for verdict in verdicts) / len(verdicts),
        mean_reward=sum(verdict.reward for verdict in verdicts) / len(verdicts),
        prompts=len(indices),
        rollouts=len(verdicts),
        start_weight=min(group.start_weight for group in groups),
        end_weight=max(group.end_weight for group in groups),
    )
