"""`evenstep trace`: the transitions of a run as a table."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime.trace.files import TraceUnreadable
from runtime.trace.follow import follow
from runtime.trace.kinds import BY_NAME
from runtime.trace.reader import TraceFile, open_trace
from runtime.trace.records import Record, as_json, printable_json
from runtime.trace.select import MACHINES, SNAPSHOT, NotInTrace, Question, matcher, select
from runtime.trace.show import plain_line, printable, row

SHOWN, UNREADABLE, WRONG_USE = 0, 1, 2
"""Exit codes."""
TABLE_ROWS = 10_000
"""A table is laid out as a whole; beyond so many rows plain lines are printed."""


def trace(
    file: Annotated[Path, typer.Argument(help="trace.jsonl of a run, or the directory that it is in.", metavar="FILE")],
    step: Annotated[
        int | None, typer.Option("--step", help="What happened while this step was open, and before to its groups.")
    ] = None,
    group: Annotated[
        int | None,
        typer.Option("--group", help="The life of one slot: attempts, retries, replacements.", metavar="SLOT"),
    ] = None,
    prompt: Annotated[int | None, typer.Option("--prompt", help="What happened to one prompt.")] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help=f"What moved one machine: {', '.join(MACHINES)}.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Seconds since the trace was opened; or, with a minus, before its end: -60."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Name of an event, move, effect or note, such as GroupLost.")
    ] = None,
    live: Annotated[bool, typer.Option("--follow", help="Go on with what is written, until the run is over.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a record, with all names and fields.")] = False,
) -> None:
    """Show what a run's control core was told, what it changed and what it asked for.

    All options given must agree; where nothing matches, stderr says so. Times are seconds since the trace was
    opened, and wall time.

    Exit codes: 0 shown, 1 the file can't be read, 2 the command was used wrongly.

    Examples:

      evenstep trace runs/today --step 12

      evenstep trace runs/today/trace.jsonl --kind GroupLost --since -300 --json
    """
    try:
        opened = open_trace(file)
        question = Question(step, group, prompt, _machine(machine), _since(opened, since), _kind(kind))
        records = _followed(opened, question) if live else select(opened, question)
        if not _print(records, as_table=not live and not json, as_plain=not json):
            typer.echo(f"evenstep trace: {_nothing(opened, question)}", err=True)
    except TraceUnreadable as error:
        typer.echo(f"evenstep trace: {error}", err=True)
        raise typer.Exit(UNREADABLE) from None
    except (NotInTrace, typer.BadParameter) as error:
        typer.echo(f"evenstep trace: {error}", err=True)
        raise typer.Exit(WRONG_USE) from None
    except KeyboardInterrupt:
        raise typer.Exit(SHOWN) from None


def _machine(name: str | None) -> str | None:
    if name is None or name in MACHINES:
        return name
    raise typer.BadParameter(f"there is no machine {name!r}; there are {', '.join(MACHINES)}")


def _kind(name: str | None) -> str | None:
    if name is None or name == SNAPSHOT or name in BY_NAME:
        return name
    raise typer.BadParameter(f"there is no kind {name!r}; there are {', '.join([*sorted(BY_NAME), SNAPSHOT])}")


def _since(opened: TraceFile, given: str | None) -> float | None:
    if given is None:
        return None
    if not re.fullmatch(r"-?\d+(\.\d*)?", given):
        raise typer.BadParameter(f"--since takes seconds, such as 90 or -60, not {given!r}")
    if not given.startswith("-"):
        return float(given)
    return opened.end_s() + float(given)


def _followed(opened: TraceFile, question: Question) -> Iterator[Record]:
    choose, wanted = matcher(opened, question)
    for line in follow(opened):
        for chosen in choose(line):
            record = opened.parse(chosen)
            if wanted(record):
                yield record


def _nothing(opened: TraceFile, question: Question) -> str:
    """What was looked for, and where."""
    path = printable(str(opened.path), widest=2_000)
    last = opened.last_head()
    if last is None:
        return f"{path} has no record: nothing had happened yet"
    given = {f"--{name.removesuffix('_s')}": value for name, value in asdict(question).items() if value is not None}
    asked = " and ".join(f"{option} {value}" for option, value in given.items())
    return f"nothing matches {asked} in {path}, whose last record is {last.seq}, at {last.monotonic_s:.3f} s"


def _print(records: Iterator[Record], *, as_table: bool, as_plain: bool) -> int:
    """Returns how many records were shown."""
    console = Console()
    count = 0
    if as_table and console.is_terminal:
        shown: list[Record] = []
        for record in records:
            shown.append(record)
            if len(shown) > TABLE_ROWS:
                break
        if len(shown) <= TABLE_ROWS:
            if shown:
                console.print(_table(shown))
            return len(shown)
        records = chain(shown, records)
    for record in records:
        count += 1
        typer.echo(plain_line(record) if as_plain else printable_json(as_json(record)))
        if not as_table:
            sys.stdout.flush()
    return count


def _table(records: list[Record]) -> Table:
    table = Table("seq", "time s", "clock", "event or · note", "what changed", "effects", show_edge=False)
    for name in ("seq", "time s"):
        table.columns[0 if name == "seq" else 1].justify = "right"
    for record in records:
        table.add_row(*(Text(str(cell)) for cell in row(record)))
    return table
