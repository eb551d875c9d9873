"""Tasks of reasoning-gym (https://github.com/open-thought/reasoning-gym), by name."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

import reasoning_gym
from reasoning_gym.factory import DATASETS

from runtime.tasks.base import Completion, JudgedTask, TaskError, VerdictFault
from runtime.tasks.config import DataConfig, ReasoningGymTaskConfig
from runtime.tasks.judges import GymJudge
from runtime.tasks.split import DrawnItems, Split, derive_seed
from runtime.wording import counted


class _GymItem(NamedTuple):
    prompt: str
    entry: dict[str, Any]


class GymTask(JudgedTask):
    """One procedural dataset. Item i of a training split is its entry i, or a later draw if that is held out."""

    def __init__(self, task: ReasoningGymTaskConfig, data: DataConfig, split: Split):
        """Raises TaskError for an unknown dataset or option, or if one side of the split stays empty."""
        size, seed = data.drawn_prompts, derive_seed(data.seed, split) % 2**31
        self._name = task.dataset
        self._pattern = _compile(task.answer_pattern)
        self._dataset = _create(task, size=size, seed=seed)
        draw = lru_cache(maxsize=4096)(self._draw)
        self._items = DrawnItems(data, split, lambda index, attempt: draw(index + attempt * size), self._draw)
        self.num_prompts, self.is_listed = self._items.num_prompts, self._items.is_listed
        self.judge = GymJudge(
            dataset=task.dataset,
            options=task.options,
            seed=seed,
            size=size,
            correct_at=task.correct_at,
            reward=task.reward,
            junk_at_most=task.junk_at_most,
        )
        self.verdict_timeout_s = task.verdict_timeout_s

    def prompt(self, index: int) -> str:
        return self._items[index].prompt

    def reference(self, index: int) -> str | None:
        """The dataset's answer, if it has just one."""
        answer = self._items[index].entry["answer"]
        return answer if isinstance(answer, str) else None

    def case(self, index: int, completion: Completion) -> tuple[str | None, dict[str, Any]]:
        """The answer in the last turn, None if it has none, and the dataset's entry."""
        entry = self._items[index].entry
        if self._pattern is None:
            return completion.text.strip(), entry
        matches = self._pattern.findall(completion.text)
        return matches[-1] if matches else None, entry

    def blame_rollout(self, index: int, completion: Completion, fault: VerdictFault) -> str:
        answer, entry = self.case(index, completion)
        return (
            f"reasoning_gym {self._name!r}, entry {index} ({entry['question']!r:.200}): its scorer "
            f"{fault.happened} for the answer {answer!r:.200}; set data.task.answer_pattern so that it only sees "
            "answers it can parse"
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
        raise TaskError(
            f"data.task.answer_pattern {pattern!r} is not a regular expression: {error}; correct it, or set it to null"
        ) from error
    if compiled.groups != 1:
        raise TaskError(
            f"data.task.answer_pattern {pattern!r} has {counted(compiled.groups, 'group')}: put parentheses "
            "around the answer once"
        )
    return compiled
