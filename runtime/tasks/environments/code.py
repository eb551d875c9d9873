"""Which environment a configuration names, and how a process imports it. Imports the standard library alone."""

import json
from dataclasses import dataclass
from typing import Literal

from runtime.tasks.base import TaskError
from runtime.tasks.environments.interface import Environment
from runtime.tasks.judges import named_in_module

SPLITS: tuple[Literal["training"], Literal["validation"]] = ("training", "validation")


@dataclass(frozen=True, slots=True)
class EnvironmentCode:
    """An environment's class and its arguments. It is pickled, and opened in the processes that keep its episodes."""

    target: str
    options: str
    """JSON, so that the whole is hashable."""
    seed: int
    held_out: bool
    """Whether there is a validation split."""

    @property
    def name(self) -> str:
        return f"environment {self.target!r}"

    def open(self) -> dict[str, Environment]:
        """One environment a split. Raises TaskError for a wrong target, and any error of users' code."""
        made = _load(self.target)
        splits = SPLITS if self.held_out else SPLITS[:1]
        return {split: made(split=split, seed=self.seed, **json.loads(self.options)) for split in splits}


def _load(target: str) -> type[Environment]:
    """The class that `module:Class` names. Raises TaskError if it cannot be imported, or is no Environment."""
    module_name, class_name, members = named_in_module(target, "data.task.target", "Class")
    found = members.get(class_name)
    if not isinstance(found, type) or not issubclass(found, Environment):
        classes = sorted(
            name
            for name, member in members.items()
            if isinstance(member, type) and issubclass(member, Environment) and member is not Environment
        )
        raise TaskError(
            f"data.task.target {target!r}: {class_name} is no subclass of "
            f"runtime.tasks.environments.interface.Environment; of these {module_name} has "
            f"{', '.join(classes) or 'none'}"
        )
    return found
