"""What several commands share: their trace argument, errors as exit codes, files written whole, a progress bar."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fsm.errors import ConfigError
from runtime.explain.live import NotReachable
from runtime.files import aside_of, reason_of, replacing
from runtime.samples.file import SamplesUnreadable
from runtime.trace.choose import head_of
from runtime.trace.files import TraceUnreadable, first_step_of, older_traces
from runtime.trace.reader import TraceFile, open_trace
from runtime.trace.select import NotInTrace
from runtime.trace.show import printable_lines

UNREADABLE, WRONG_USE = 1, 2
"""Exit codes."""
CANT_READ = (TraceUnreadable, SamplesUnreadable, ConfigError, NotReachable)
"""Errors of what a command reads."""
TraceArgument = Annotated[
    Path, typer.Argument(help="The trace.jsonl of a run, or the run's directory (its newest trace).", metavar="FILE")
]
WriteOption = Annotated[
    list[Path] | None,
    typer.Option("--write", help="Refresh the generated parts of this document in place. Repeatable.", metavar="FILE"),
]


def tell_older_traces(command: str, given: Path, opened: TraceFile, step: int | None = None) -> None:
    """Say on stderr which older traces a run's directory has, and which of them has the step that is asked for."""
    older = older_traces(opened.path) if given.is_dir() else []
    if not older:
        return
    begins = first_step_of(opened.header)
    wanted, option = older[-1], ""
    if step is not None and step < begins:
        wanted = next((each for each in reversed(older) if _reaches_back_to(each, step)), older[0])
        option = f" --step {step}"
    line = (
        f"evenstep {command}: {opened.path.name} is the newest trace of a run that was resumed, and begins at step "
        f"{begins}; {'older ones are' if len(older) > 1 else 'an older one is'} "
        f"{', '.join(each.name for each in older)}; to read it: evenstep {command} {wanted}{option}"
    )
    typer.echo(printable_lines(line), err=True)


def _reaches_back_to(trace: Path, step: int) -> bool:
    """Whether a trace begins at this step or before it."""
    try:
        return first_step_of(open_trace(trace).header) <= step
    except TraceUnreadable:
        return False


class WrongUse(Exception):
    """An argument is wrong. The message says what is allowed."""


class OutputRefused(Exception):
    """The file could not be written."""


@contextmanager
def errors_as_exit_codes(command: str) -> Iterator[None]:
    """Print what keeps a command from reading (exit code 1) or what is wrong with its arguments or output (2)."""
    try:
        yield
    except (*CANT_READ, OutputRefused, NotInTrace, WrongUse) as error:
        typer.echo(f"evenstep {command}: {printable_lines(str(error))}", err=True)
        wrong_use = isinstance(error, OutputRefused | NotInTrace | WrongUse)
        raise typer.Exit(WRONG_USE if wrong_use else UNREADABLE) from None


def write_whole(output: Path, write: Callable[[IO[str]], object], encoding: str = "ascii") -> None:
    """Write a second file and rename it, so that an existing file stays until the new one is whole.

    An existing path that is no plain file, such as /dev/null, is written to directly. Raises OutputRefused.
    """
    with _refusing(output):
        if output.exists() and not output.is_file():
            with output.open("w", encoding=encoding) as opened:
                write(opened)
            return
        with replacing(output) as aside, aside.open("w", encoding=encoding) as opened:
            write(opened)


def require_writable(output: Path) -> None:
    """Find out early whether `write_whole` can write a file. Raises OutputRefused."""
    with _refusing(output):
        if output.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if output.exists() and not os.access(output, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if output.exists() and not output.is_file():
            return
        aside = aside_of(output)
        aside.touch(exist_ok=False)
        aside.unlink()


@contextmanager
def _refusing(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputRefused(
            f"{output} cannot be written: {reason_of(error)}; name a file in a folder that can be written to"
        ) from error


def with_generated(document: str, begin: str, text: str, end: str) -> str:
    """`document` with the text between two marks replaced. Raises ValueError if it lacks the marks."""
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"it has no {begin} with a {end} after it")
    return f"{before}{begin}\n{text}{end}{after}"


@contextmanager
def showing_progress(*traces: TraceFile) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a terminal. Yields a function that takes the number of records read so far."""
    console = Console(stderr=True)
    total = sum(map(_records_in, traces))
    if not console.is_terminal or not total:
        yield lambda _: None
        return
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("records"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda records: shown.update(task, completed=records)


def _records_in(trace: TraceFile) -> int:
    first, last = head_of(next(trace.lines(), b"")), trace.last_head()
    return 0 if first is None or last is None else last.seq - first.seq + 1
