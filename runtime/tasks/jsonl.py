"""Prompts and answers from a file of JSON lines, rated by a function that the configuration names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from runtime.tasks.base import Task, Verdict
from runtime.tasks.config import DataConfig, JsonlTaskConfig
from runtime.tasks.errors import TaskError, VerifierFailed
from runtime.tasks.split import Split, is_held_out

Verifier = Callable[[str, str], Any]
"""Returns a reward in [0, 1] or a bool; what it really returns is checked."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file; `number` counts from 1."""

    number: int
    prompt: str
    answer: str


class JsonlTask(Task):
    """The lines of one side of the split, in the order of the file."""

    def __init__(self, task: JsonlTaskConfig, data: DataConfig, split: Split):
        """Raises TaskError for a file, line or verifier that is wrong, or when this side has no line."""
        self._task = task
        self._verifier = load_verifier(task.verifier)
        self._path = task.path
        lines = read_lines(task.path)
        if task.validation_path is not None:
            held_out = read_lines(task.validation_path)
            if split == "validation":
                self._path = task.validation_path
                self._lines = held_out[: data.validation_size]
            else:
                prompts = {line.prompt for line in held_out}
                self._lines = [line for line in lines if line.prompt not in prompts]
        else:
            wanted = split == "validation"
            self._lines = [line for line in lines if is_held_out(line.prompt, data.held_out_fraction) == wanted]
            if wanted:
                self._lines = self._lines[: data.validation_size]
        if not self._lines and not (split == "validation" and data.validation_size == 0):
            raise TaskError(
                f"{self._path}: of {len(lines)} lines none is left for {split} with data.held_out_fraction "
                f"{data.held_out_fraction}; add lines, change the fraction, or name a data.task.validation_path"
            )

    @property
    def num_prompts(self) -> int:
        """The number of lines on this side."""
        return len(self._lines)

    @property
    def is_listed(self) -> bool:
        """A file's lines are."""
        return True

    def where(self, index: int) -> str:
        """File and line."""
        return f"{self._path}:{self._lines[index].number}"

    def prompt(self, index: int) -> str:
        """The line's prompt."""
        return self._lines[index].prompt

    def reference(self, index: int) -> str:
        """The line's answer."""
        return self._lines[index].answer

    def verify(self, index: int, turns: Sequence[str], sibling: int) -> Verdict:
        """What the verifier makes of the last turn. Raises VerifierFailed, naming file and line."""
        line = self._lines[index]
        where = f"{self.where(index)}: verifier {self._task.verifier!r}"
        try:
            result = self._verifier(turns[-1], line.answer)
        except Exception as error:
            raise VerifierFailed(
                f"{where} raised {type(error).__name__}: {error} on {_shown(line, turns[-1])}; make it return 0.0 for "
                "what it cannot parse"
            ) from error
        if not isinstance(result, bool | int | float) or not 0 <= result <= 1:
            raise VerifierFailed(
                f"{where} returned {result!r:.200} for {_shown(line, turns[-1])}; return a reward in [0, 1] or a bool"
            )
        return Verdict(reward=float(result), correct=result >= self._task.correct_at)


def _shown(line: Line, completion: str) -> str:
    return f"the completion {completion!r:.200} of the prompt {line.prompt!r:.200} with the answer {line.answer!r:.200}"


def read_lines(path: Path) -> list[Line]:
    """All lines of a file, blank ones left out. Raises TaskError with file, line and remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read as UTF-8 text: {error}; check data.task.path") from error
    lines = [_parse(path, number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise TaskError(f'{path}: has no lines; write one {{"prompt": …, "answer": …}} a line')
    return lines


def load_verifier(target: str) -> Verifier:
    """The function that `module:function` names. Raises TaskError when there is none."""
    module_name, _, function_name = target.partition(":")
    if not module_name or not function_name:
        raise TaskError(f"data.task.verifier {target!r}: write it as module:function")
    try:
        members = vars(import_module(module_name))
    except ImportError as error:
        raise TaskError(
            f"data.task.verifier {target!r}: importing {module_name} failed: {error}; it must be importable where "
            "evenstep runs (installed, or in PYTHONPATH)"
        ) from error
    if not callable(members.get(function_name)):
        functions = sorted(name for name, member in members.items() if callable(member) and not name.startswith("_"))
        raise TaskError(
            f"data.task.verifier {target!r}: {module_name} has no function {function_name!r}; it has "
            f"{', '.join(functions) or 'none'}"
        )
    verifier: Verifier = members[function_name]
    return verifier


def _parse(path: Path, number: int, line: str) -> Line:
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
    return Line(number=number, prompt=value["prompt"], answer=value["answer"])
