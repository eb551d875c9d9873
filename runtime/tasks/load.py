"""The task that the `data:` block describes."""

from __future__ import annotations

from runtime.tasks.base import Task
from runtime.tasks.config import DataConfig, JsonlTaskConfig, ReasoningGymTaskConfig
from runtime.tasks.delay import DelayedTask
from runtime.tasks.embedded import CharacterTask
from runtime.tasks.jsonl import JsonlTask
from runtime.tasks.split import Split


def load_task(data: DataConfig, split: Split) -> Task:
    """One side of the configured task. Only training is delayed: validation measures accuracy, not waiting.

    Raises TaskError, before anything runs, for data, options or a verifier that is wrong.
    """
    task = _load(data, split)
    if data.delay is not None and split == "training":
        return DelayedTask(task, data.delay, data.seed)
    return task


def _load(data: DataConfig, split: Split) -> Task:
    config = data.task
    if isinstance(config, JsonlTaskConfig):
        return JsonlTask(config, data, split)
    if isinstance(config, ReasoningGymTaskConfig):
        # reasoning-gym imports a lot, and takes seconds: only who uses it waits.
        from runtime.tasks.gym import GymTask

        return GymTask(config, data, split)
    return CharacterTask(config, data, split)
