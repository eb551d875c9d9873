"""The order in which a run takes prompts. A stream's position is its whole state, so resuming is exact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from runtime.tasks.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a run is in its data.

    `position` prompts were taken, over all epochs; epoch e is positions e × num_prompts to (e + 1) × num_prompts − 1.
    `max_epochs` None: no end. `first_prompt` is the run's number of the prompt at position 0: not 0 where the run went
    on with other data (C3).
    """

    num_prompts: int
    seed: int
    shuffle: bool
    max_epochs: int | None
    position: int = 0
    first_prompt: int = 0

    @property
    def left_in_epoch(self) -> int:
        """Prompts not yet taken of the epoch that the position is in; 0 when the stream has ended."""
        if self.max_epochs is not None and self.position >= self.max_epochs * self.num_prompts:
            return 0
        return self.num_prompts - self.position % self.num_prompts


@dataclass(frozen=True, slots=True)
class StreamItem:
    """A prompt of the run: `prompt` is its number in the run (a second epoch has new ones), `index` the task's item."""

    prompt: int
    index: int


def item_at(stream: Stream, prompt: int) -> StreamItem:
    """Prompt number `prompt` of the run, wherever the stream's position is."""
    epoch, offset = divmod(prompt - stream.first_prompt, stream.num_prompts)
    index = int(_order(stream.seed, epoch, stream.num_prompts)[offset]) if stream.shuffle else offset
    return StreamItem(prompt=prompt, index=index)


def take(stream: Stream, count: int) -> tuple[tuple[StreamItem, ...], Stream]:
    """The next batch and the stream after it. A batch never spans two epochs: an epoch's last one may be shorter (A5).

    An empty batch means that the data is used up.
    """
    end = stream.position + min(count, stream.left_in_epoch)
    first = stream.first_prompt
    items = tuple(item_at(stream, first + position) for position in range(stream.position, end))
    return items, replace(stream, position=end)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, num_prompts: int) -> npt.NDArray[np.int64]:
    return np.random.Generator(np.random.PCG64(derive_seed(seed, "order", epoch))).permutation(num_prompts)
