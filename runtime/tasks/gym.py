"""Tasks of reasoning-gym (https://github.com/open-thought/reasoning-gym), by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from runtime.tasks.base import Task, Verdict
from runtime.tasks.config import DataConfig, ReasoningGymTaskConfig
from runtime.tasks.errors import TaskError, VerifierFailed
from runtime.tasks.seeds import derive_seed
from runtime.tasks.split import Split, training_item, validation_items


@dataclass(frozen=True, slots=True)
class _Item:
    prompt: str
    entry: dict[str, Any]


class GymTask(Task):
    """One procedural dataset. Item i of a training split is its entry i, or a later draw where that is held out."""

    def __init__(self, task: ReasoningGymTaskConfig, data: DataConfig, split: Split):
        """Raises TaskError for an unknown dataset or option, or when one side of the split stays empty."""
        self._task = task
        self._data = data
        self._pattern = _compile(task.answer_pattern)
        self._dataset = _create(task, size=data.num_prompts, seed=derive_seed(data.seed, split) % 2**31)
        self._held_out = (
            validation_items(self._draw, data.held_out_fraction, data.validation_size)
            if split == "validation"
            else None
        )
        self._cached_training_item = lru_cache(maxsize=4096)(self._training_item)

    @property
    def num_prompts(self) -> int:
        """Training: as configured. Validation: as many different ones as were found."""
        return self._data.num_prompts if self._held_out is None else len(self._held_out)

    @property
    def is_listed(self) -> bool:
        """Held-out items are."""
        return self._held_out is not None

    def prompt(self, index: int) -> str:
        """The dataset's question."""
        return self._item(index).prompt

    def reference(self, index: int) -> str | None:
        """The dataset's answer, where it has just one."""
        answer = self._item(index).entry["answer"]
        return answer if isinstance(answer, str) else None

    def verify(self, index: int, turns: Sequence[str], sibling: int) -> Verdict:
        """The dataset's own score of the last turn. Raises VerifierFailed when the scorer does."""
        entry = self._item(index).entry
        answer: str | None = turns[-1].strip()
        if self._pattern is not None:
            matches = self._pattern.findall(turns[-1])
            if not matches:
                return Verdict(reward=0.0, correct=False)
            answer = matches[-1]
        try:
            score = float(self._dataset.score_answer(answer=answer, entry=entry))
        except Exception as error:
            raise VerifierFailed(
                f"reasoning_gym {self._task.dataset!r}, entry {index} ({entry['question']!r:.200}): its scorer raised "
                f"{type(error).__name__}: {error} on the answer {answer!r:.200}; set data.task.answer_pattern so that "
                "it only sees answers it can parse"
            ) from error
        correct = score >= self._task.correct_at
        if self._task.reward == "binary":
            return Verdict(reward=float(correct), correct=correct)
        return Verdict(reward=0.0 if score <= self._task.junk_at_most else min(score, 1.0), correct=correct)

    def _item(self, index: int) -> _Item:
        return self._held_out[index] if self._held_out is not None else self._cached_training_item(index)

    def _training_item(self, index: int) -> _Item:
        return training_item(
            lambda attempt: self._draw(index + attempt * self._data.num_prompts), self._data.held_out_fraction
        )

    def _draw(self, number: int) -> _Item:
        entry = self._dataset[number]
        return _Item(prompt=entry["question"], entry=entry)


def _create(task: ReasoningGymTaskConfig, *, size: int, seed: int) -> Any:
    if task.dataset not in DATASETS:
        raise TaskError(
            f"data.task.dataset {task.dataset!r} is none of reasoning-gym's {len(DATASETS)} datasets: "
            f"{', '.join(sorted(DATASETS))}"
        )
    try:
        return reasoning_gym.create_dataset(task.dataset, size=size, seed=seed, **task.options)
    except (TypeError, ValueError, AssertionError) as error:
        raise TaskError(
            f"data.task.options {task.options} do not suit reasoning-gym's {task.dataset!r}: {error}; its options are "
            f"the fields of {DATASETS[task.dataset][1].__name__}"
        ) from error


def _compile(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise TaskError(f"data.task.answer_pattern {pattern!r} is no regular expression: {error}") from error
    if compiled.groups != 1:
        raise TaskError(
            f"data.task.answer_pattern {pattern!r} has {compiled.groups} groups: put parentheses around the answer, "
            "once"
        )
    return compiled
