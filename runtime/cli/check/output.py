"""The files that `evenstep check` writes; whether it can write them is checked before anything is explored."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import typer

from runtime.cli.common import OutputRefused, require_writable, write_whole
from specs.check.cases import Case
from specs.check.concrete import Concrete, Untold
from specs.check.formats import junit_text, sarif_values
from specs.check.saved import pytest_text, scenario_text
from specs.check.verdicts import Checked, never_happens
from specs.checker.explore import Result

MARK = "# Written by `evenstep check --save`, which may write it again; without this line it may not."
"""The first line of a saved file."""


class Outputs(NamedTuple):
    """Where to write; None: nowhere."""

    junit: Path | None
    sarif: Path | None
    save: Path | None


def refuse_outputs(outputs: Outputs, read: Sequence[Path]) -> None:
    """Raises OutputRefused for a file that could not be written, or that this command has not written before.

    `read` are the files of the configuration and of the user's code.
    """
    places = [("--junit", outputs.junit), ("--sarif", outputs.sarif), ("--save", outputs.save)]
    named = [(option, path) for option, path in places if path is not None]
    for option, path in named:
        _require_place(option, path)
    if outputs.save is not None:
        if outputs.save.suffix.lower() == ".py":
            scenario = outputs.save.with_suffix(".yaml")
            raise OutputRefused(
                f"--save {outputs.save} would be the scenario and the test both; name the scenario, as in "
                f"--save {scenario}: the test is written next to it, as {_test_of(outputs.save)}"
            )
        test = ("the test of --save", _test_of(outputs.save))
        _require_place(*test)
        named.append(test)
        for path in (outputs.save, test[1]):
            _require_mark(path)
    for number, (option, path) in enumerate(named):
        for other, there in named[:number]:
            if _same(path, there):
                raise OutputRefused(f"{other} and {option} are both {path}; name two files")
        if any(_same(path, file) for file in read):
            raise OutputRefused(f"{option} {path} would overwrite what is checked; name another file")


def _test_of(save: Path) -> Path:
    return save.with_suffix(".py")


def _require_place(option: str, path: Path) -> None:
    try:
        require_writable(path)
    except OutputRefused as reason:
        raise OutputRefused(f"{option}: {reason}") from reason


def _require_mark(path: Path) -> None:
    if not path.exists():
        return
    if path.is_file():
        with path.open("rb") as opened:
            if opened.readline().strip() == MARK.encode("ascii"):
                return
    raise OutputRefused(
        f"{path} is there, and was not written by `evenstep check --save`, so --save does not overwrite it; "
        f"name another file, or remove it"
    )


def _same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def write_reports(outputs: Outputs, checked: Checked, name: str, config: Path | None) -> None:
    """Write JUnit XML and SARIF, if asked for. Raises OutputRefused."""
    if outputs.junit is not None:
        text = junit_text(checked, name)
        write_whole(outputs.junit, lambda opened: opened.write(text), "utf-8")
    if outputs.sarif is not None:
        values = sarif_values(checked, None if config is None else config.as_posix(), version("evenstep"))
        write_whole(outputs.sarif, lambda opened: opened.write(json.dumps(values, indent=2)), "utf-8")


def save_story(path: Path, violations: Sequence[tuple[Case, Result]], story: Concrete | str) -> None:
    """Write the counterexample; as a scenario only if that reproduces it. Raises OutputRefused."""
    if not violations:
        typer.echo(f"nothing is violated, so {path} is not written", err=True)
        return
    case, result = violations[0]
    if never_happens(case, result):
        typer.echo(f"{result.broken} never happens, which no counterexample shows, so {path} is not written", err=True)
        return
    test = _test_of(path)
    _write_marked(test, pytest_text(case, result))
    typer.echo(f"wrote {test}: pytest {test}", err=True)
    try:
        if isinstance(story, str):
            raise Untold(story)
        scenario = scenario_text(case, result, story)
    except Untold as reason:
        typer.echo(f"{path} is not written, a scenario cannot tell this story: {reason}", err=True)
        return
    _write_marked(path, scenario)
    typer.echo(f"wrote {path}: evenstep scenario run --no-setup-checks {path}", err=True)


def _write_marked(path: Path, text: str) -> None:
    write_whole(path, lambda opened: opened.write(f"{MARK}\n{text}"), "utf-8")
