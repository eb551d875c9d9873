"""Two tasks on characters that a tiny model learns within minutes: reversing letters and sorting digits."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.tasks.base import OwnTask
from runtime.tasks.config import DataConfig, ReverseTaskConfig, SortTaskConfig
from runtime.tasks.judges import Verdict
from runtime.tasks.seeds import derive_seed
from runtime.tasks.split import Split, training_item, validation_items


@dataclass(frozen=True, slots=True)
class _EmbeddedItem:
    prompt: str
    answer: str


class CharacterTask(OwnTask):
    """A prompt of a few characters and `>`, and one right answer: the characters in another order."""

    def __init__(self, task: ReverseTaskConfig | SortTaskConfig, data: DataConfig, split: Split):
        """Raises TaskError when the options leave no prompt on one side of the split."""
        self._task = task
        self._data = data
        self._held_out = (
            validation_items(
                lambda attempt: self._draw("validation", attempt), data.held_out_fraction, data.validation_size
            )
            if split == "validation"
            else None
        )

    @property
    def num_prompts(self) -> int:
        """Training: as configured. Validation: as many different ones as were found."""
        return self._data.drawn_prompts if self._held_out is None else len(self._held_out)

    @property
    def is_listed(self) -> bool:
        """Held-out items are."""
        return self._held_out is not None

    def prompt(self, index: int) -> str:
        """For example `hello>`."""
        return self._item(index).prompt

    def reference(self, index: int) -> str:
        """For example `olleh`."""
        return self._item(index).answer

    def verify(self, index: int, turns: Sequence[str], sibling: int) -> Verdict:
        """Exact, or by the places that are right: a missing or surplus character is a wrong place."""
        answer, given = self._item(index).answer, turns[-1]
        correct = given == answer
        if self._task.reward == "exact" or correct:
            return Verdict(reward=float(correct), correct=correct)
        right = sum(a == b for a, b in zip(answer, given, strict=False))
        return Verdict(reward=right / max(len(answer), len(given)), correct=False)

    def _item(self, index: int) -> _EmbeddedItem:
        if self._held_out is not None:
            return self._held_out[index]
        return training_item(lambda attempt: self._draw("training", index, attempt), self._data.held_out_fraction)

    def _draw(self, *stream: int | str) -> _EmbeddedItem:
        task = self._task
        rng = random.Random(derive_seed(self._data.seed, task.name, *stream))
        length = rng.randint(task.min_length, task.max_length)
        if isinstance(task, ReverseTaskConfig):
            text = "".join(rng.choices(string.ascii_lowercase[: task.letters], k=length))
            return _EmbeddedItem(prompt=f"{text:>{task.max_length}}>", answer=text[::-1])
        text = "".join(rng.choices(string.digits, k=length))
        return _EmbeddedItem(prompt=f"{text:>{task.max_length}}>", answer="".join(sorted(text)))
