"""Prompts of a list are counted in tokens before the run starts, so that too long ones are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from fsm.config.blocks import GrpoConfig
from fsm.config.setup import NO_LIMIT_OF_EPOCHS
from runtime.evaluation.sets import EvaluationSet
from runtime.launch.preflight import Findings
from runtime.models.text import TextCodec, make_codec
from runtime.settings import Settings
from runtime.tasks.base import Task, TaskError
from runtime.tasks.data import load_task

NAMED = 3
"""How many too long prompts a message names."""


@dataclass(frozen=True, slots=True)
class _Long:
    where: str
    tokens: int


def count_prompts(settings: Settings, tokenizer: PreTrainedTokenizerBase) -> Findings:
    """Count every listed prompt, templates included, against `generation.max_prompt_tokens`.

    Training prompts that are too long are data failures, of which `max_skipped_prompts` may occur in a run (L7); a
    validation skips none. Tasks that draw their prompts during the run are not counted.
    """
    try:
        codec = make_codec(tokenizer, settings.data)
        training = load_task(settings.data, "training")
        long_training = _too_long(training, codec, settings.generation.max_prompt_tokens)
        refusals = list(long_held_out(settings.sets, tokenizer))
    except TaskError as error:
        return Findings(refusals=(str(error),))
    notices = []
    skipped = len(long_training) * _passes(settings.grpo, training.num_prompts)
    budget = settings.async_rl.rollout_failure.max_skipped_prompts
    if skipped > budget:
        skips = f", or have them skipped, with async_rl.rollout_failure.max_skipped_prompts: {skipped}"
        refused = _refusal(long_training, training.num_prompts, settings)
        refusals.append(refused + (skips if skipped < NO_LIMIT_OF_EPOCHS else ""))
    elif skipped:
        notices.append(
            f"{len(long_training)} of {training.num_prompts} prompts are longer than generation.max_prompt_tokens = "
            f"{settings.generation.max_prompt_tokens} and will be skipped: {_named(long_training)}"
        )
    return Findings(tuple(refusals), tuple(notices))


def long_held_out(sets: Sequence[EvaluationSet], tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Refusals of sets with too long prompts. Raises TaskError."""
    for each in sets:
        task = load_task(each.data, "validation")
        found = _too_long(task, make_codec(tokenizer, each.data), each.max_prompt_tokens)
        if found:
            yield (
                f"{len(found)} of {task.num_prompts} prompts of {each.name} are longer than max_prompt_tokens = "
                f"{each.max_prompt_tokens}: {_named(found)}; set generation.max_prompt_tokens or {each.key}."
                f"max_prompt_tokens to {found[0].tokens}, shorten these prompts or leave them out of the data"
            )


def _passes(grpo: GrpoConfig, num_prompts: int) -> int:
    """Passes over the data, the last one begun; without a limit of epochs, as many as the steps take."""
    if grpo.max_num_epochs is not None:
        return grpo.max_num_epochs
    if grpo.max_num_steps is None:
        return NO_LIMIT_OF_EPOCHS
    return -(-grpo.max_num_steps * grpo.num_prompts_per_step // max(num_prompts, 1))


def _too_long(task: Task, codec: TextCodec, limit: int) -> list[_Long]:
    """Too long prompts, the longest first; none for a task that draws its items."""
    if not task.is_listed:
        return []
    counted = [(index, len(codec.encode_prompt(task.opening(index)))) for index in range(task.num_prompts)]
    found = [_Long(task.where(index), tokens) for index, tokens in counted if tokens > limit]
    return sorted(found, key=lambda long: -long.tokens)


def _refusal(found: list[_Long], prompts: int, settings: Settings) -> str:
    generation, longest = settings.generation, found[0].tokens
    sequence = longest + generation.max_new_tokens
    also = (
        f" and policy.max_total_sequence_length to {sequence}"
        if sequence > settings.policy.max_total_sequence_length
        else ""
    )
    return (
        f"{len(found)} of {prompts} prompts of training are longer than generation.max_prompt_tokens = "
        f"{generation.max_prompt_tokens}: {_named(found)}; set max_prompt_tokens to {longest}{also}, shorten these "
        "prompts or leave them out of the data"
    )


def _named(found: list[_Long]) -> str:
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(f"{long.where} has {long.tokens} tokens" for long in found[:NAMED]) + more
