"""Commands that read a trace and write a file: whole or not at all, what goes wrong said in one way, and progress."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runtime.trace.choose import head_of
from runtime.trace.files import TraceUnreadable
from runtime.trace.reader import TraceFile
from runtime.trace.show import printable

UNREADABLE, WRONG_USE = 1, 2
"""Exit codes."""


class OutputRefused(Exception):
    """The file could not be written."""


def write_beside(output: Path, write: Callable[[IO[str]], object], encoding: str = "ascii") -> None:
    """Write a file aside and rename it, so that one that was there stays until the new one is whole.

    What is there and is no plain file, as /dev/null, is written to instead. Raises NotWritten.
    """
    with _saying_why_not(output):
        if output.exists() and not output.is_file():
            with output.open("w", encoding=encoding) as opened:
                write(opened)
            return
        aside = _aside(output)
        try:
            with aside.open("w", encoding=encoding) as opened:
                write(opened)
            aside.replace(output)
        finally:
            aside.unlink(missing_ok=True)


def require_writable(output: Path) -> None:
    """Find out early whether `write_beside` can write a file. Raises NotWritten."""
    with _saying_why_not(output):
        if output.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if output.exists() and not os.access(output, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if output.exists() and not output.is_file():
            return
        aside = _aside(output)
        aside.touch(exist_ok=False)
        aside.unlink()


def _aside(output: Path) -> Path:
    return output.parent / f".{output.name}.tmp-{os.getpid()}"


@contextmanager
def _saying_why_not(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputRefused(
            f"{output} can't be written: {error.strerror or error}; name a file in a folder that can be written to"
        ) from error


@contextmanager
def saying_why_not(command: str) -> Iterator[None]:
    """What keeps a command from reading or writing is said on stderr, and is its exit code."""
    try:
        yield
    except (TraceUnreadable, OutputRefused) as error:
        typer.echo(f"evenstep {command}: {printable(str(error), widest=2_000)}", err=True)
        raise typer.Exit(UNREADABLE if isinstance(error, TraceUnreadable) else WRONG_USE) from None


@contextmanager
def showing_progress(trace: TraceFile) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, where that is a terminal. Yields what is to be told how many records were read."""
    console = Console(stderr=True)
    first = head_of(next(trace.lines(), b""))
    last = trace.last_head()
    if not console.is_terminal or first is None or last is None:
        yield lambda _: None
        return
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("records"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=last.seq - first.seq + 1)
        yield lambda records: shown.update(task, completed=records)
