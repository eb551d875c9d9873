"""Prompts and answers from a file of JSON lines, rated by a function that the configuration names.

Only verdict processes (`runtime.tasks.verdicts`) import the function.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from runtime.files import why_not_plain
from runtime.tasks.base import Completion, JudgedTask, TaskError, VerdictFault
from runtime.tasks.config import DataConfig, JsonlTaskConfig
from runtime.tasks.judges import FunctionJudge
from runtime.tasks.split import Split, is_held_out


@dataclass(frozen=True, slots=True)
class JsonLine:
    """A line of the file; `number` counts from 1."""

    number: int
    prompt: str
    answer: str


class JsonlTask(JudgedTask):
    """The lines of one side of the split, in the order of the file."""

    is_listed = True

    def __init__(self, task: JsonlTaskConfig, data: DataConfig, split: Split):
        """Raises TaskError for a wrong file or line, or if this side has no line."""
        self._path = task.path
        self.judge = FunctionJudge(task.verifier, task.correct_at)
        self.verdict_timeout_s = task.verdict_timeout_s
        sides = split_lines(task, data)
        self._lines = sides.training
        if split == "validation":
            self._path = task.validation_path or task.path
            self._lines = sides.held_out[: data.validation_size]
        if not self._lines and not (split == "validation" and data.validation_size == 0):
            raise TaskError(
                f"{self._path}: of {sides.taken} lines none is left for {split} with data.held_out_fraction "
                f"{data.held_out_fraction}; add lines, change the fraction, or name a data.task.validation_path"
            )
        self.num_prompts = len(self._lines)

    def where(self, index: int) -> str:
        return f"{self._path}:{self._lines[index].number}"

    def prompt(self, index: int) -> str:
        return self._lines[index].prompt

    def reference(self, index: int) -> str:
        return self._lines[index].answer

    def case(self, index: int, completion: Completion) -> tuple[str, str]:
        return completion.text, self._lines[index].answer

    def blame(self, index: int, completion: Completion, fault: VerdictFault) -> str:
        line = self._lines[index]
        return (
            f"{self.where(index)}: {self.judge.name} {fault.happened} for the completion "
            f"{completion.text!r:.200} of the prompt {line.prompt!r:.200} with the answer "
            f"{line.answer!r:.200}; {fault.remedy}"
        )


@dataclass(frozen=True, slots=True)
class Sides:
    """A file's lines, held out or not."""

    file: int
    """Lines in the file."""
    taken: int
    """How many of these `data.num_prompts` uses."""
    training: list[JsonLine]
    held_out: list[JsonLine]
    """Never trained on; the first `validation_size` of them measure accuracy."""


def split_lines(task: JsonlTaskConfig, data: DataConfig) -> Sides:
    """Both sides of the split. Raises TaskError with file, line and remedy."""
    lines = read_lines(task.path, "data.task.path")
    wanted = len(lines) if data.num_prompts is None else data.num_prompts
    if wanted > len(lines):
        raise TaskError(
            f"{task.path}: has {len(lines)} lines, and data.num_prompts asks for the first {wanted}; set it to "
            f"{len(lines)} or less, or leave it out for all of them"
        )
    taken = lines[:wanted]
    if task.validation_path is not None:
        held_out = read_lines(task.validation_path, "data.task.validation_path")
        prompts = {line.prompt for line in held_out}
        training = [line for line in taken if line.prompt not in prompts]
        return Sides(len(lines), wanted, training, held_out)
    fraction = data.held_out_fraction if data.validation_size else 0.0
    sides: tuple[list[JsonLine], list[JsonLine]] = ([], [])
    for line in taken:
        sides[is_held_out(line.prompt, fraction)].append(line)
    return Sides(len(lines), wanted, *sides)


def say_split(task: JsonlTaskConfig, data: DataConfig) -> str:
    """A sentence on which lines are trained on, which are not, and why. Raises TaskError."""
    sides = split_lines(task, data)
    said = f"training on {len(sides.training)} of the {sides.file} lines of {task.path}"
    if data.num_prompts is not None:
        said += f" (data.num_prompts takes the first {sides.taken})"
    if task.validation_path is not None:
        left_out = sides.taken - len(sides.training)
        return f"{said}; {left_out} left out, whose prompts are held out in {task.validation_path}"
    if not data.validation_size:
        return f"{said}; none held out, since data.validation_size is 0"
    measured = min(data.validation_size, len(sides.held_out))
    return (
        f"{said}; {len(sides.held_out)} held out for validation (data.held_out_fraction {data.held_out_fraction:g}), "
        f"{measured} of them measured (data.validation_size)"
    )


def read_lines(path: Path, key: str) -> list[JsonLine]:
    """The lines of the file that `key` names, without blank ones. Raises TaskError with file, line and remedy."""
    if problem := why_not_plain(path):
        raise TaskError(f"{path}: {problem}; {key} must name a plain file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read as UTF-8 text: {error}; check {key}") from error
    lines = [_parse(path, number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise TaskError(f'{path}: has no lines; write one {{"prompt": …, "answer": …}} a line')
    return lines


def _parse(path: Path, number: int, line: str) -> JsonLine:
    where = f"{path}:{number}"
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: is not JSON ({error}); write one object a line") from error
    if not isinstance(value, dict):
        raise TaskError(f'{where}: is a {type(value).__name__}; write an object {{"prompt": …, "answer": …}}')
    for key in ("prompt", "answer"):
        if not isinstance(value.get(key), str):
            found = f"a {type(value[key]).__name__}" if key in value else f"missing; the line has {sorted(value)}"
            raise TaskError(f"{where}: {key!r} is {found}; give it as a string")
    if not value["prompt"]:
        raise TaskError(f"{where}: 'prompt' is empty; give it a text, or leave the line out")
    return JsonLine(number=number, prompt=value["prompt"], answer=value["answer"])
