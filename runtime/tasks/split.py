"""Training and held-out prompts, disjoint by construction.

A prompt is held out when a digest of its text falls below a fraction. That depends on the text alone: a prompt that
is drawn twice, or under another seed, or after a resume, lands on the same side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

from runtime.tasks.errors import TaskError
from runtime.tasks.seeds import derive_seed

Split = Literal["training", "validation"]
_DRAWS_MAX = 1000


class HasPrompt(Protocol):
    """An item, as far as splitting is concerned."""

    @property
    def prompt(self) -> str:
        """The text that decides the side."""
        ...


Item = TypeVar("Item", bound=HasPrompt)


def is_held_out(prompt: str, fraction: float) -> bool:
    """This prompt is for validation only."""
    return derive_seed("held out", prompt) < fraction * 2**63


def training_item(draw: Callable[[int], Item], fraction: float) -> Item:
    """The first of draw(0), draw(1), … that is not held out. Raises TaskError when there is none."""
    for attempt in range(_DRAWS_MAX):
        item = draw(attempt)
        if not is_held_out(item.prompt, fraction):
            return item
    raise TaskError(
        f"{_DRAWS_MAX} draws gave no training prompt with data.held_out_fraction {fraction}: the task has too few "
        "different prompts; lower the fraction or widen the task's options"
    )


def validation_items(draw: Callable[[int], Item], fraction: float, size: int) -> list[Item]:
    """`size` different items of draw(0), draw(1), … that are held out, or fewer where the task has no more.

    Raises TaskError when there is none at all.
    """
    items: dict[str, Item] = {}
    if size == 0:
        return []
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
