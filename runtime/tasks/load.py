"""The task that the `data:` block describes."""

from __future__ import annotations

from runtime.tasks.base import JudgedTask, OwnTask
from runtime.tasks.config import DataConfig, JsonlTaskConfig, ReasoningGymTaskConfig
from runtime.tasks.embedded import CharacterTask
from runtime.tasks.jsonl import JsonlTask
from runtime.tasks.split import Split


def judged(data: DataConfig) -> bool:
    """The task's verdicts are made by code of users or of other packages."""
    return isinstance(data.task, JsonlTaskConfig | ReasoningGymTaskConfig)


def load_task(data: DataConfig, split: Split) -> OwnTask | JudgedTask:
    """One side of the configured task.

    Raises TaskError, before anything runs, for data or options that are wrong. A verifier is not looked at.
    """
    config = data.task
    if isinstance(config, JsonlTaskConfig):
        return JsonlTask(config, data, split)
    if isinstance(config, ReasoningGymTaskConfig):
        # reasoning-gym imports a lot, and takes seconds: only who uses it waits.
        from runtime.tasks.gym import GymTask

        return GymTask(config, data, split)
    return CharacterTask(config, data, split)
