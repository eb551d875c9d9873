"""Prompts from data files, rated by functions that the configuration names: the tasks `jsonl` and `dataset`.

Rows stay on disk; a task keeps the numbers of its rows. Only verdict processes (`runtime.tasks.verdicts`) import the
functions.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.tasks.base import Chat, Completion, JudgedTask, TaskError, VerdictFault
from runtime.tasks.config import DataConfig
from runtime.tasks.overlap import FileTaskConfig, held_out_source, is_held_out_apart, training_source
from runtime.tasks.rewards import case_of
from runtime.tasks.rows.digest import BLANK, Digests
from runtime.tasks.rows.index import IndexedRows, open_rows
from runtime.tasks.rows.item import Item, RowColumns, item_of
from runtime.tasks.rows.scanning import RowsRead
from runtime.tasks.rows.source import RowSource
from runtime.tasks.rows.table import Row
from runtime.tasks.split import Split, held_out_below
from runtime.wording import counted

_RECENT = 256
"""Rows that a task keeps parsed: one is asked for by each of its rollouts."""
_COMPARED_ROWS = 1_000_000
"""Rows that are looked up among held-out ones at a time."""
RowNumbers = npt.NDArray[np.uint32] | npt.NDArray[np.int64]


class FileTask(JudgedTask):
    """The rows of one side of the split, in the order of the files."""

    is_listed = True

    def __init__(self, task: FileTaskConfig, data: DataConfig, split: Split):
        """Raises TaskError for a wrong file or row, or if this side has no row."""
        self.judge, self.weights = task.judge, task.weights
        self._is_read = not task.judge.takes_answers
        self.verdict_timeout_s = task.verdict_timeout_s
        self._columns = columns_of(task, data)
        sides = split_rows(task, data)
        side = sides.training if split == "training" else sides.held_out
        numbers = side.numbers if split == "training" else side.numbers[: data.validation_size]
        if not len(numbers) and split == "training" and is_held_out_apart(task):
            raise TaskError(
                f"{side.source.name}: of {counted(sides.taken, _noun(side.source))} none is left for training, since "
                f"the prompts of all are held out in {_called(sides.held_out.source)}; name other rows in "
                "data.task.validation_path, or leave it out"
            )
        if not len(numbers) and not (split == "validation" and data.validation_size == 0):
            raise TaskError(
                f"{side.source.name}: of {counted(sides.taken, _noun(side.source))} none is left for {split} with "
                f"data.held_out_fraction {data.held_out_fraction}; add {_noun(side.source)}s, change the fraction, or "
                "name a data.task.validation_path"
            )
        self._table, self._numbers = side.rows.table, numbers
        self.num_prompts = len(numbers)
        self.identity = side.rows.identity
        self._read = lru_cache(maxsize=_RECENT)(self._read_row)

    def where(self, index: int) -> str:
        return self._table.where(int(self._numbers[index]))

    def prompt(self, index: int) -> str:
        return self._read(index)[1].text

    def opening(self, index: int) -> str | Chat:
        return self._read(index)[1].opening

    def reference(self, index: int) -> str | None:
        return self._read(index)[1].answer

    def columns(self, index: int) -> Row:
        return self._read(index)[0] if self._is_read else {}

    def case(self, index: int, completion: Completion) -> tuple[str, dict[str, Any]]:
        row, item = self._read(index)
        opening = item.text if item.is_text else item.opening
        prompt = opening if isinstance(opening, str) else [dict(each) for each in opening.messages]
        return case_of(completion, prompt=prompt, answer=item.answer, columns=row)

    def blame_rollout(self, index: int, completion: Completion, fault: VerdictFault) -> str:
        item = self._read(index)[1]
        return (
            f"{self.where(index)}: {self.judge.name} {fault.happened} for the completion "
            f"{completion.text!r:.200} of the prompt {item.text!r:.200} with the answer "
            f"{item.answer!r:.200}; {fault.remedy}"
        )

    def _read_row(self, index: int) -> tuple[Row, Item]:
        row = self._table.row(int(self._numbers[index]))
        return row, item_of(row, self._columns, self.where(index))


@dataclass(frozen=True, slots=True)
class Side:
    """Rows of a source, in its order."""

    source: RowSource
    rows: IndexedRows
    numbers: RowNumbers


@dataclass(frozen=True, slots=True)
class Sides:
    """A source's rows, held out or not."""

    there: int
    """Rows of the source."""
    taken: int
    """How many of these `data.num_prompts` uses."""
    training: Side
    held_out: Side
    """Never trained on; the first `validation_size` of them measure accuracy."""


def columns_of(task: FileTaskConfig, data: DataConfig) -> RowColumns:
    """Which columns are read, and how."""
    named, texts_only = task.columns, data.prompt_template != "{prompt}"
    chat_of_texts = data.prompt_template if data.chat and named.tools else None
    return RowColumns(named.prompt, named.answer, named.tools, task.cut_answers, texts_only, chat_of_texts)


def split_rows(task: FileTaskConfig, data: DataConfig, tell: RowsRead = lambda name, read, rows: None) -> Sides:
    """Both sides of the split. Raises TaskError with file, row and remedy.

    tell: called while large data is read for the first time on this machine.
    """
    columns = columns_of(task, data)
    source = training_source(task)
    rows = open_rows(source, columns, tell)
    there = int(np.count_nonzero(rows.digests != BLANK))
    if not there:
        write = (
            'one {"prompt": …, "answer": …} a line' if source.format == "json lines" else "a prompt and an answer each"
        )
        raise TaskError(f"{source.name}: has no {_noun(source)}s; write {write}")
    taken = there if data.num_prompts is None else data.num_prompts
    if taken > there:
        raise TaskError(
            f"{source.name}: has {counted(there, _noun(source))}, and data.num_prompts asks for the first {taken}; "
            f"set it to {there} or less, or leave it out for all of them"
        )
    digests = rows.digests[: len(rows.digests) if taken == there else _end_of(rows.digests, taken)]
    held_out = held_out_source(task)
    if held_out is not None:
        held_rows = open_rows(held_out, columns, tell)
        training = Side(source, rows, _numbers((digests != BLANK) & ~_among(digests, held_rows.digests)))
        return Sides(there, taken, training, Side(held_out, held_rows, _numbers(held_rows.digests != BLANK)))
    below = held_out_below(data.held_out_fraction if data.validation_size else 0.0)
    return Sides(
        there,
        taken,
        Side(source, rows, _numbers(digests >= below)),  # a blank line has a digest below 0
        Side(source, rows, _numbers((digests < below) & (digests != BLANK))),
    )


def say_split(task: FileTaskConfig, data: DataConfig) -> str:
    """A sentence on which rows are trained on, which are not, and why. Raises TaskError."""
    sides = split_rows(task, data)
    source, training = sides.training.source, len(sides.training.numbers)
    split = "" if source.split is None else f" ({source.split})"
    if source.left_out and sides.held_out.source == source:
        split = f" without {counted(len(source.left_out), 'file')} of other splits, such as {source.left_out[0]}"
    said = f"training on {training} of the {counted(sides.there, _noun(source))} of {source.name}{split}"
    if data.num_prompts is not None:
        said += f" (data.num_prompts takes the first {sides.taken})"
    other = sides.held_out.source
    if other != source:
        return f"{said}; {sides.taken - training} left out, whose prompts are held out in {_called(other)}"
    if not data.validation_size:
        return f"{said}; none held out, since data.validation_size is 0"
    held_out = len(sides.held_out.numbers)
    return (
        f"{said}; {held_out} held out for validation (data.held_out_fraction {data.held_out_fraction:g}), "
        f"{min(data.validation_size, held_out)} of them measured (data.validation_size)"
    )


def _noun(source: RowSource) -> str:
    return "line" if source.format == "json lines" else "row"


def _called(source: RowSource) -> str:
    """The name of a source and, where its path does not tell, its split or its only file."""
    if source.split is not None:
        return f"{source.name} ({source.split})"
    return str(source.files[0]) if len(source.files) == 1 else source.name


def _numbers(chosen: npt.NDArray[np.bool_]) -> RowNumbers:
    """The numbers of the chosen rows, in four bytes each where they fit."""
    numbers = np.flatnonzero(chosen)
    return numbers.astype(np.uint32) if len(chosen) < 2**32 else numbers


def _end_of(digests: Digests, rows: int) -> int:
    """The number of the line after the first so many rows that are not blank."""
    return int(np.flatnonzero(digests != BLANK)[rows - 1]) + 1


def _among(digests: Digests, others: Digests) -> npt.NDArray[np.bool_]:
    """Which digests are among the others, looked up in parts to bound memory."""
    known = np.unique(others[others != BLANK])
    found = np.zeros(len(digests), np.bool_)
    for start in range(0, len(digests) if len(known) else 0, _COMPARED_ROWS):
        part = digests[start : start + _COMPARED_ROWS]
        places = np.searchsorted(known, part).clip(max=len(known) - 1)
        found[start : start + _COMPARED_ROWS] = known[places] == part
    return found
