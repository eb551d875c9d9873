"""A run's data: its task, and the order in which it takes prompts.

The stream's position is its whole state, so resuming is exact.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from runtime.files import why_not_plain
from runtime.tasks.base import JudgedTask, OwnTask, TaskError
from runtime.tasks.config import CustomTaskConfig, DataConfig, ReasoningGymTaskConfig, RowsTaskConfig
from runtime.tasks.embedded import CharacterTask
from runtime.tasks.environments.task import EnvironmentTask
from runtime.tasks.files import FileTask, split_rows
from runtime.tasks.rewards import RatedByFunctions
from runtime.tasks.rows.scanning import RowsRead
from runtime.tasks.split import Split, derive_seed


def judged(data: DataConfig) -> bool:
    """Whether code of users or of other packages computes the task's verdicts."""
    return isinstance(data.task, RatedByFunctions | ReasoningGymTaskConfig)


def load_task(data: DataConfig, split: Split) -> OwnTask | JudgedTask | EnvironmentTask:
    """One split of the task that the `data:` block describes. Does not load its verifier.

    Raises TaskError for wrong data or options, before anything runs.
    """
    config = data.task
    if isinstance(config, RowsTaskConfig):
        return FileTask(config, data, split)
    if isinstance(config, CustomTaskConfig):
        return EnvironmentTask(config, data, split)
    if isinstance(config, ReasoningGymTaskConfig):
        from runtime.tasks.gym import GymTask  # importing reasoning-gym takes seconds

        return GymTask(config, data, split)
    return CharacterTask(config, data, split)


def prepare_data(data: DataConfig, tell: RowsRead) -> None:
    """Read large data for the first time on this machine, so that no process has to later. Raises TaskError."""
    if isinstance(data.task, RowsTaskConfig):
        split_rows(data.task, data, tell)


def read_chat_template(data: DataConfig) -> str | None:
    """The text of `data.chat_template`; None for the tokenizer's own. Raises TaskError."""
    file = data.chat_template
    if file is None:
        return None
    if problem := why_not_plain(file):
        raise TaskError(f"data.chat_template {file}: {problem}; correct the path")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a null character in the path
        raise TaskError(f"data.chat_template {file}: cannot be read: {error}; correct the path") from error


@dataclass(frozen=True, slots=True)
class Stream:
    """The position of a run in its data.

    `position` prompts were taken over all epochs; epoch e is positions e × num_prompts to (e + 1) × num_prompts − 1.
    `max_epochs` None: no end. `first_prompt` is the run's number of the prompt at position 0. It is not 0 if the run
    was resumed with other data (C3).
    """

    num_prompts: int
    seed: int
    shuffle: bool
    max_epochs: int | None
    position: int = 0
    first_prompt: int = 0

    @property
    def left_in_epoch(self) -> int:
        """Prompts not yet taken of the current epoch; 0 if the stream has ended."""
        if self.max_epochs is not None and self.position >= self.max_epochs * self.num_prompts:
            return 0
        return self.num_prompts - self.position % self.num_prompts


@dataclass(frozen=True, slots=True)
class StreamItem:
    """A prompt of the run: `prompt` is its number in the run (a second epoch has new ones), `index` the task's item."""

    prompt: int
    index: int


def item_at(stream: Stream, prompt: int) -> StreamItem:
    """Prompt number `prompt` of the run, at any position of the stream."""
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


@lru_cache(maxsize=2)  # two epochs meet at an epoch's end; ten million prompts take 40 MB each
def _order(seed: int, epoch: int, num_prompts: int) -> npt.NDArray[np.uint32] | npt.NDArray[np.int64]:
    order = np.random.Generator(np.random.PCG64(derive_seed(seed, "order", epoch))).permutation(num_prompts)
    return order.astype(np.uint32) if num_prompts < 2**32 else order
