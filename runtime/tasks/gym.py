"""Tasks of reasoning-gym (https://github.com/open-thought/reasoning-gym), by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from runtime.tasks.base import JudgedTask, VerdictFault
from runtime.tasks.config import DataConfig, ReasoningGymTaskConfig
from runtime.tasks.errors import TaskError
from runtime.tasks.gym_judge import GymJudge
from runtime.tasks.seeds import derive_seed
from runtime.tasks.split import Split, training_item, validation_items


@dataclass(frozen=True, slots=True)
class _GymItem:
    prompt: str
    entry: dict[str, Any]


class GymTask(JudgedTask):
    """One procedural dataset. Item i of a training split is its entry i, or a later draw where that is held out."""

    def __init__(self, task: ReasoningGymTaskConfig, data: DataConfig, split: Split):
        """Raises TaskError for an unknown dataset or option, or when one side of the split stays empty."""
        self._task = task
        self._data = data
        self._pattern = _compile(task.answer_pattern)
        self._num_prompts = data.drawn_prompts
        self._seed = derive_seed(data.seed, split) % 2**31
        self._dataset = _create(task, size=self._num_prompts, seed=self._seed)
        self._held_out = (
            validation_items(self._draw, data.held_out_fraction, data.validation_size)
            if split == "validation"
            else None
        )
        self._cached_training_item = lru_cache(maxsize=4096)(self._training_item)

    @property
    def num_prompts(self) -> int:
        """Training: as configured. Validation: as many different ones as were found."""
        return self._num_prompts if self._held_out is None else len(self._held_out)

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

    @property
    def judge(self) -> GymJudge:
        """The dataset's scorer."""
        task = self._task
        return GymJudge(
            dataset=task.dataset,
            options=task.options,
            seed=self._seed,
            size=self._num_prompts,
            correct_at=task.correct_at,
            reward=task.reward,
            junk_at_most=task.junk_at_most,
        )

    @property
    def verdict_timeout_s(self) -> float:
        """As configured."""
        return self._task.verdict_timeout_s

    def case(self, index: int, turns: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
        """The answer in the last turn, None where there is none, and the dataset's entry."""
        entry = self._item(index).entry
        if self._pattern is None:
            return turns[-1].strip(), entry
        matches = self._pattern.findall(turns[-1])
        return matches[-1] if matches else None, entry

    def blame(self, index: int, turns: Sequence[str], fault: VerdictFault) -> str:
        """Dataset, entry and answer."""
        answer, entry = self.case(index, turns)
        return (
            f"reasoning_gym {self._task.dataset!r}, entry {index} ({entry['question']!r:.200}): its scorer "
            f"{fault.happened} for the answer {answer!r:.200}; set data.task.answer_pattern so that it only sees "
            "answers it can parse"
        )

    def _item(self, index: int) -> _GymItem:
        return self._held_out[index] if self._held_out is not None else self._cached_training_item(index)

    def _training_item(self, index: int) -> _GymItem:
        return training_item(
            lambda attempt: self._draw(index + attempt * self._num_prompts), self._data.held_out_fraction
        )

    def _draw(self, number: int) -> _GymItem:
        entry = self._dataset[number]
        return _GymItem(prompt=entry["question"], entry=entry)


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
