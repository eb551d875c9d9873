"""Two tasks on characters that a tiny model learns within minutes: reversing letters and sorting digits."""

import random
import string
from functools import partial
from typing import NamedTuple

from runtime.tasks.base import Completion, OwnTask, Verdict
from runtime.tasks.config import DataConfig, ReverseTaskConfig, SortTaskConfig
from runtime.tasks.split import DrawnItems, Split, derive_seed


class _EmbeddedItem(NamedTuple):
    prompt: str
    answer: str


class CharacterTask(OwnTask):
    """A prompt of a few characters and `>` (`hello>`), and one right answer: the characters in another order."""

    def __init__(self, task: ReverseTaskConfig | SortTaskConfig, data: DataConfig, split: Split):
        """Raises TaskError if the options leave one side of the split without a prompt."""
        self._task = task
        self._seed = data.seed
        self._items = DrawnItems(data, split, partial(self._draw, "training"), partial(self._draw, "validation"))
        self.num_prompts, self.is_listed = self._items.num_prompts, self._items.is_listed

    def prompt(self, index: int) -> str:
        return self._items[index].prompt

    def reference(self, index: int) -> str:
        return self._items[index].answer

    def verify(self, index: int, completion: Completion, sibling: int) -> Verdict:
        """Exact, or the share of characters in their right place; a missing or surplus one counts as wrong."""
        answer, given = self._items[index].answer, completion.text
        correct = given == answer
        if self._task.reward == "exact" or correct:
            return Verdict(reward=float(correct), correct=correct)
        right = sum(a == b for a, b in zip(answer, given, strict=False))
        return Verdict(reward=right / max(len(answer), len(given)), correct=False)

    def _draw(self, *stream: int | str) -> _EmbeddedItem:
        task = self._task
        rng = random.Random(derive_seed(self._seed, task.name, *stream))
        length = rng.randint(task.min_length, task.max_length)
        if isinstance(task, ReverseTaskConfig):
            text = "".join(rng.choices(string.ascii_lowercase[: task.letters], k=length))
            answer = text[::-1]
        else:
            text = "".join(rng.choices(string.digits, k=length))
            answer = "".join(sorted(text))
        return _EmbeddedItem(prompt=f"{text:>{task.max_length}}>", answer=answer)
