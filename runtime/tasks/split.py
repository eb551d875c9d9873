"""Seeds, and the split of prompts into training and held-out ones.

A prompt is held out if a digest of its text is below a fraction. The side depends on the text alone: a prompt that is
drawn twice, under another seed, or after a resume lands on the same side.
"""

import math
from collections.abc import Callable
from hashlib import blake2b
from typing import Generic, Literal, Protocol, TypeVar

from runtime.tasks.base import TaskError
from runtime.tasks.config import DataConfig

Split = Literal["training", "validation"]
_DRAWS_MAX = 1000


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that is a pure function of `parts`, the same on every machine and in every process.

    Python's `hash` differs between processes, and adding seeds makes (1, 2) collide with (2, 1). A digest of the
    parts, each with its type and length, does neither.
    """
    digest = blake2b(digest_size=8)
    for part in parts:
        text = str(part)
        digest.update(f"{type(part).__name__}:{len(text)}:{text};".encode())
    return int.from_bytes(digest.digest(), "big") >> 1


class HasPrompt(Protocol):
    """An item with the text that decides its side."""

    @property
    def prompt(self) -> str: ...


Item = TypeVar("Item", bound=HasPrompt)


def is_held_out(prompt: str, fraction: float) -> bool:
    """Whether this prompt is for validation only."""
    return derive_seed("held out", prompt) < held_out_below(fraction)


def held_out_below(fraction: float) -> int:
    """Digests of prompts below this are held out."""
    return math.ceil(fraction * 2**63)


class DrawnItems(Generic[Item]):
    """The items of one split of a task that draws them: held-out items at once, training items on request.

    draw_training(index, attempt), draw_held_out(attempt): draws; those that fall on the other side are skipped.
    """

    def __init__(
        self,
        data: DataConfig,
        split: Split,
        draw_training: Callable[[int, int], Item],
        draw_held_out: Callable[[int], Item],
    ) -> None:
        """Raises TaskError if the task has no held-out prompt."""
        self._fraction = data.held_out_fraction
        self._draw_training = draw_training
        self.is_listed = split == "validation"
        self._held_out = _held_out(draw_held_out, self._fraction, data.validation_size) if self.is_listed else []
        self.num_prompts = len(self._held_out) if self.is_listed else data.drawn_prompts

    def __getitem__(self, index: int) -> Item:
        """Raises TaskError if all draws of a training item are held out."""
        if self.is_listed:
            return self._held_out[index]
        for attempt in range(_DRAWS_MAX):
            item = self._draw_training(index, attempt)
            if not is_held_out(item.prompt, self._fraction):
                return item
        raise TaskError(
            f"{_DRAWS_MAX} draws gave no training prompt with data.held_out_fraction {self._fraction}: the task has "
            "too few different prompts; lower the fraction or widen the task's options"
        )


def _held_out(draw: Callable[[int], Item], fraction: float, size: int) -> list[Item]:
    """`size` different held-out items, or fewer if the task has no more."""
    if size == 0:
        return []
    items: dict[str, Item] = {}
    draws = _DRAWS_MAX + int(10 * size / fraction) if fraction > 0 else 0
    for attempt in range(draws):
        item = draw(attempt)
        if is_held_out(item.prompt, fraction):
            items.setdefault(item.prompt, item)
        if len(items) == size:
            break
    if not items:
        raise TaskError(
            f"{draws} draws gave no held-out prompt with data.held_out_fraction {fraction}: raise the fraction, or "
            "set data.validation_size to 0"
        )
    return list(items.values())
