"""The `validation:` block: when held-out prompts are measured, how they are sampled, and in which named sets."""

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from fsm.config.strict import Strict
from runtime.generation.config import TOP_K_MAX
from runtime.tasks.base import TaskError
from runtime.tasks.config import DataConfig, DatasetTaskConfig, JsonlTaskConfig, RowsTaskConfig
from runtime.tasks.overlap import same_rows, training_source
from runtime.tasks.rewards import RatedByFunctions

DEFAULT_SET = "validation"
"""The name of the one set of a configuration without `validation.sets`."""
TRAINING = "training"
"""In place of a set's name: the prompts that are trained on."""
LONGEST_NAME = 64
"""Characters of a set's name."""
_HELD_OUT_BY_NAME = {"validation_path", "validation_split"}
"""Keys of a task that say which of its rows are held out."""
_RATED_BY_FUNCTIONS = {task.model_fields["name"].default for task in (JsonlTaskConfig, DatasetTaskConfig)}
_RATING = set(RatedByFunctions.model_fields)


class EvaluationSetConfig(Strict):
    """A named set of prompts and how they are sampled. A key that is null is that of `validation`."""

    data: DataConfig | None = Field(
        default=None,
        description="Keys of the data block that are different for this set; null: none. If they name a task with a "
        "path other than the run's, all its rows are held out (held_out_fraction 1), unless they say otherwise. Of the "
        "run's files only rows that the run holds out can be measured. If it names no verifier and no rewards, those "
        "of data.task rate its rows. As everywhere, validation_size limits how many are measured.",
    )
    every_steps: int | None = Field(
        default=None, ge=0, description="Steps between two measurements; 0: only before and after the run."
    )
    rollouts_per_prompt: int | None = Field(default=None, ge=1, description="Completions of each prompt.")
    temperature: float | None = Field(default=None, ge=0, description="Sampling temperature; 0: greedy.")
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Sample among the fewest likeliest tokens that reach this probability."
    )
    top_k: int | None = Field(
        default=None,
        ge=0,
        le=TOP_K_MAX,
        description="Sample among this many of the likeliest tokens; 0: all of them.",
    )
    max_new_tokens: int | None = Field(default=None, ge=1, description="Longest completion of a turn, in tokens.")
    max_prompt_tokens: int | None = Field(
        default=None, ge=1, description="Longest prompt, in tokens, templates and earlier turns included."
    )
    seed: int | None = Field(default=None, ge=0, description="Seed of the draws.")


class ValidationConfig(Strict):
    """Held-out prompts measured by the generation workers, and by `evenstep eval`. It does not involve the core."""

    every_steps: int | None = Field(
        default=50, ge=0, description="Steps between two validations; null or 0: only before and after the run."
    )
    rollouts_per_prompt: int = Field(
        default=1, ge=1, description="Completions of each held-out prompt; more than one give pass@k."
    )
    temperature: float | None = Field(
        default=None, ge=0, description="Sampling temperature; null: that of generation; 0: greedy."
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Sample among the fewest likeliest tokens that reach this probability; null: as in generation.",
    )
    top_k: int | None = Field(
        default=None,
        ge=0,
        le=TOP_K_MAX,
        description="Sample among this many of the likeliest tokens; null: as in generation; 0: all of them.",
    )
    max_new_tokens: int | None = Field(
        default=None, ge=1, description="Longest completion of a turn, in tokens; null: as in generation."
    )
    max_prompt_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Longest prompt, in tokens, templates and earlier turns included; null: as in generation.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the draws, the same at each validation.")
    sets: dict[str, EvaluationSetConfig] = Field(
        default_factory=dict,
        description="Named sets, measured in place of the one that data.validation_size holds out. The first one is "
        "the run's held-out accuracy.",
    )

    @model_validator(mode="after")
    def _named(self) -> Self:
        """A set whose name is not a letter followed by letters, digits, `_`, `-`; or is `training` or `validation`."""
        for name in self.sets:
            fits = len(name) <= LONGEST_NAME and re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name)
            if not fits or name in (TRAINING, DEFAULT_SET):
                shown = repr(name) if len(name) <= LONGEST_NAME else f"{name[:20]!r}… of {len(name)} characters"
                raise ValueError(
                    f"sets has the name {shown}, and metrics and columns of tables are named after it: take a letter "
                    f"followed by letters, digits, _ and -, at most {LONGEST_NAME} in all, other than {TRAINING} and "
                    f"{DEFAULT_SET}"
                )
        return self


def with_whole_data(document: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as read from YAML, with the `data` of each set completed from the run's `data`."""
    validation = document.get("validation")
    sets = validation.get("sets") if isinstance(validation, Mapping) else None
    if not isinstance(validation, Mapping) or not isinstance(sets, Mapping):
        return dict(document)
    whole = {name: _completed(given, document.get("data")) for name, given in sets.items()}
    return {**document, "validation": {**validation, "sets": whole}}


def _completed(given: Any, run: Any) -> Any:
    """A set; one that is not a mapping of mappings is refused later, by its key."""
    own = given.get("data") if isinstance(given, Mapping) else None
    if not isinstance(own, Mapping):
        return given
    task: Any = own.get("task")
    own_rows = isinstance(task, Mapping) and "path" in task and not _HELD_OUT_BY_NAME & task.keys()
    run = run if isinstance(run, Mapping) else {}
    of_run = run.get("task")
    if own_rows and isinstance(of_run, Mapping) and _of_same_rows(task, of_run):
        return {
            **given,
            "data": {**run, **own, "task": {**_rating_of(of_run, task), **_held_out_as_in(task, of_run), **task}},
        }
    whole = {"held_out_fraction": 1.0, "num_prompts": None} if own_rows else {}
    rated = {"task": {**_rating_of(of_run, task), **task}} if isinstance(task, Mapping) else {}
    return {**given, "data": {**run, **whole, **own, **rated}}


def _rating_of(run: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the run's task that rate completions; none if the set's task has its own, or other ones."""
    if not isinstance(run, Mapping) or {"verifier", "rewards"} & own.keys():
        return {}
    if not {run.get("name"), own.get("name")} <= _RATED_BY_FUNCTIONS:
        return {}
    return {key: value for key, value in run.items() if key in _RATING}


def _of_same_rows(*tasks: Any) -> bool:
    """Whether two tasks have training rows in common. Not if one is wrong, which is told later, by its key."""
    try:
        configs = [DataConfig(task=task).task for task in tasks]
        sources = [training_source(config) for config in configs if isinstance(config, RowsTaskConfig)]
    except (ValidationError, TaskError):
        return False
    return len(sources) == 2 and same_rows(*sources)


def _held_out_as_in(task: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in _HELD_OUT_BY_NAME & run.keys() if task.get("name") == run.get("name")}
