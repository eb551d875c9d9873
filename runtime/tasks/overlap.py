"""Which files a task's rows are from, and whether a set's prompts are among those that a run trains on."""

from pathlib import Path

from runtime.tasks.config import (
    DataConfig,
    DatasetTaskConfig,
    JsonlTaskConfig,
    ReasoningGymTaskConfig,
    ReverseTaskConfig,
    RowsTaskConfig,
    SortTaskConfig,
)
from runtime.tasks.rows.source import RowSource, find_source, source_of_lines

FileTaskConfig = JsonlTaskConfig | DatasetTaskConfig


def training_source(task: FileTaskConfig) -> RowSource:
    """Raises TaskError."""
    if isinstance(task, JsonlTaskConfig):
        return source_of_lines(task.path, "data.task.path")
    return find_source(task.path, task.split, task.subset, "data.task.path")


def is_held_out_apart(task: FileTaskConfig) -> bool:
    """Whether held-out rows have a source of their own, so that `data.held_out_fraction` holds out none."""
    return task.validation_path is not None or (
        isinstance(task, DatasetTaskConfig) and task.validation_split is not None
    )


def held_out_source(task: FileTaskConfig) -> RowSource | None:
    """Where held-out rows are; None if some of the training rows are held out. Raises TaskError."""
    key = "data.task.validation_path"
    if not is_held_out_apart(task):
        return None
    if isinstance(task, JsonlTaskConfig):
        assert task.validation_path is not None
        return source_of_lines(task.validation_path, key)
    return find_source(task.validation_path or task.path, task.validation_split, task.subset, key)


def same_rows(one: RowSource, other: RowSource) -> bool:
    """Whether some rows are from both: a common file, or the same split of a dataset of the hub."""
    if not one.files or not other.files:
        return (one.files, one.name, one.split, one.subset) == (other.files, other.name, other.split, other.subset)
    return not {*map(Path.resolve, one.files)}.isdisjoint(map(Path.resolve, other.files))


def trained_on(measured: DataConfig, run: DataConfig) -> str | None:
    """Why prompts that a set of a run measures are trained on, and what to set; None if they are not.

    Raises TaskError for files that are not there.
    """
    task, of_run = measured.task, run.task
    if not isinstance(task, RowsTaskConfig) or not isinstance(of_run, RowsTaskConfig):
        return _drawn_on(measured, run)
    apart, trained, left_out = held_out_source(task), training_source(of_run), held_out_source(of_run)
    if apart == left_out is not None or not same_rows(apart or training_source(task), trained):
        return None
    if apart is not None or left_out is not None:
        by = "data.held_out_fraction" if left_out is None else "data.task of the run"
        return (
            f"it measures rows of {trained.name} that the run trains on; leave validation_path and validation_split of "
            f"its task out to measure what {by} holds out, or name another file"
        )
    if not run.validation_size or not run.held_out_fraction:
        key = "held_out_fraction" if run.validation_size else "validation_size"
        return (
            f"it measures rows of {trained.name}, all of which the run trains on, since data.{key} is 0; set that "
            "above 0 to hold some out, or name another file for the set"
        )
    if measured.held_out_fraction > run.held_out_fraction:
        return (
            f"its data.held_out_fraction is {measured.held_out_fraction:g}, and the run trains on all but "
            f"{run.held_out_fraction:g} of {trained.name}; leave it out, or set it to {run.held_out_fraction:g} or less"
        )
    return None


def _drawn_on(measured: DataConfig, run: DataConfig) -> str | None:
    """The same for prompts that both draw: what a larger fraction holds out, the run may draw for training."""
    task, of_run = measured.task, run.task
    drawn = ReverseTaskConfig | SortTaskConfig | ReasoningGymTaskConfig
    if not isinstance(task, drawn) or task.name != of_run.name or measured.held_out_fraction <= run.held_out_fraction:
        return None
    if isinstance(of_run, ReasoningGymTaskConfig) and task.model_dump().get("dataset") != of_run.dataset:
        return None
    return (
        f"its data.held_out_fraction is {measured.held_out_fraction:g}, and the run draws prompts of the same task "
        f"for training, all but {run.held_out_fraction:g} of them; leave it out, or raise data.held_out_fraction of "
        "the run"
    )
