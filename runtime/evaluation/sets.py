"""Evaluation sets with every key resolved, and the limits that an engine needs to sample them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from runtime.evaluation.config import DEFAULT_SET, EvaluationSetConfig, ValidationConfig
from runtime.generation.config import GenerationConfig, Sampling
from runtime.tasks.config import DataConfig

HeldOut = Mapping[str, int]
"""The number of prompts of each set, by its name."""

PART_PROMPTS, PARTS_AT_A_TIME = 64, 2
"""A set is measured in parts, so that progress is seen; two at a time, so that no worker is idle."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Prompts, and how they are sampled."""

    name: str
    data: DataConfig
    """The set is the held-out side of its split."""
    sampling: Sampling
    rollouts_per_prompt: int
    max_prompt_tokens: int
    seed: int
    every_steps: int | None
    """Steps between two measurements in a run; None: only before and after it."""

    @property
    def key(self) -> str:
        """The set's place in the configuration."""
        return "validation" if self.name == DEFAULT_SET else f"validation.sets.{self.name}"


def sets_of(validation: ValidationConfig, data: DataConfig, generation: GenerationConfig) -> list[EvaluationSet]:
    """The named sets in order; without any the default one, unless `data.validation_size` is 0."""
    named = dict(validation.sets)
    if not named and data.validation_size:
        named = {DEFAULT_SET: EvaluationSetConfig()}
    return [_resolved(name, given, validation, data, generation) for name, given in named.items()]


def _resolved(
    name: str, given: EvaluationSetConfig, validation: ValidationConfig, data: DataConfig, generation: GenerationConfig
) -> EvaluationSet:
    top_k = _first(given.top_k, validation.top_k, generation.top_k or 0)
    every_steps = _first(given.every_steps, validation.every_steps or 0)
    return EvaluationSet(
        name=name,
        data=given.data or data,
        sampling=Sampling(
            temperature=_first(given.temperature, validation.temperature, generation.temperature),
            top_p=_first(given.top_p, validation.top_p, generation.top_p),
            top_k=top_k or None,
            max_new_tokens=_first(given.max_new_tokens, validation.max_new_tokens, generation.max_new_tokens),
            purpose="evaluation",
        ),
        rollouts_per_prompt=_first(given.rollouts_per_prompt, validation.rollouts_per_prompt),
        max_prompt_tokens=_first(given.max_prompt_tokens, validation.max_prompt_tokens, generation.max_prompt_tokens),
        seed=_first(given.seed, validation.seed),
        every_steps=every_steps or None,
    )


def _first(*values: Value | None) -> Value:
    """The first that is not None; the last one never is."""
    return next(value for value in values if value is not None)


def problems_of_sets(sets: Sequence[EvaluationSet], rows: int) -> Iterator[str]:
    """Sets that cannot be measured, on an engine that decodes so many sequences at a time."""
    for each in sets:
        if each.rollouts_per_prompt > rows:
            yield (
                f"{each.key}.rollouts_per_prompt is {each.rollouts_per_prompt}, but generation.engine."
                f"max_batch_sequences is {rows}, and the completions of a prompt are decoded together: set that to at "
                f"least {each.rollouts_per_prompt}, or lower the former"
            )
        if not each.data.validation_size:
            yield (
                f"{each.key} has no prompts, since its data.validation_size is 0: set {each.key}.data.validation_size "
                "to how many to measure, or data.validation_size for all sets"
            )


def keys_of_limits(generation: GenerationConfig, sets: Sequence[EvaluationSet]) -> str:
    """The keys that `engine_limits` has its two limits from: those of a set only if it is longer than training."""
    prompts = {"generation": generation.max_prompt_tokens} | {each.key: each.max_prompt_tokens for each in sets}
    turns = {"generation": generation.max_new_tokens} | {each.key: each.sampling.max_new_tokens for each in sets}
    of_prompts, of_turns = max(prompts, key=prompts.__getitem__), max(turns, key=turns.__getitem__)
    second = "max_new_tokens" if of_turns == of_prompts else f"{of_turns}.max_new_tokens"
    return f"{of_prompts}.max_prompt_tokens + {second}"


def engine_limits(generation: GenerationConfig, sets: Sequence[EvaluationSet]) -> GenerationConfig:
    """The configuration of an engine that serves `generation` and every set: the longest prompt and completion."""
    return generation.model_copy(
        update={
            "max_prompt_tokens": max([generation.max_prompt_tokens, *(each.max_prompt_tokens for each in sets)]),
            "max_new_tokens": max([generation.max_new_tokens, *(each.sampling.max_new_tokens for each in sets)]),
        }
    )
