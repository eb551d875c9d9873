"""`evenstep trace`: the transitions of a run as a table."""

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain, islice
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime.cli.common import TraceArgument, WrongUse, errors_as_exit_codes, tell_older_traces
from runtime.trace.kinds import BY_NAME
from runtime.trace.reader import TraceFile, follow, open_trace
from runtime.trace.records import Record, as_json, printable_json
from runtime.trace.select import MACHINES, SNAPSHOT, Question, select
from runtime.trace.show import plain_line, row

TABLE_ROWS = 10_000
"""A table is laid out as a whole; longer output is printed as plain lines."""


def trace(
    file: TraceArgument,
    step: Annotated[
        int | None, typer.Option("--step", help="Records while this step was open, and earlier ones about its groups.")
    ] = None,
    group: Annotated[
        int | None,
        typer.Option("--group", help="The life of one slot: attempts, retries, replacements.", metavar="SLOT"),
    ] = None,
    prompt: Annotated[int | None, typer.Option("--prompt", help="The life of one prompt.")] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", help=f"Records that moved one machine: {', '.join(MACHINES)}.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="From so many seconds into the trace on; -60: the last 60 seconds."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Records with an event, change, effect or note such as GroupLost.")
    ] = None,
    live: Annotated[bool, typer.Option("--follow", help="Keep printing new records until the run is over.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object per record, with all names and fields.")
    ] = False,
) -> None:
    """Show what a run's control core was told, what that changed, and which effects it asked for.

    A record must match all options that are given; if none does, stderr says so. Times are seconds since the trace was
    opened, and wall time. Lines that begin with · are notes: what only the runtime knows.

    Exit codes: 0 shown, 1 the trace cannot be read, 2 the command was used wrongly.

    Examples:

      evenstep trace runs/today --step 12

      evenstep trace runs/today/trace.jsonl --kind GroupLost --since -300 --json
    """
    try:
        with errors_as_exit_codes("trace"):
            opened = open_trace(file)
            tell_older_traces("trace", file, opened, step)
            _require_known("machine", machine, list(MACHINES))
            _require_known("kind", kind, [*sorted(BY_NAME), SNAPSHOT])
            question = Question(step, group, prompt, machine, _seconds(opened, since), kind)
            records = select(opened, question, follow(opened) if live else None)
            if not _print(records, as_table=not live and not json, as_plain=not json):
                typer.echo(f"evenstep trace: {_nothing(opened, question)}", err=True)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _require_known(what: str, name: str | None, known: list[str]) -> None:
    if name is not None and name not in known:
        raise WrongUse(f"there is no {what} {name!r}; there are {', '.join(known)}")


def _seconds(opened: TraceFile, since: str | None) -> float | None:
    """--since in seconds since the trace was opened."""
    if since is None:
        return None
    if not re.fullmatch(r"-?\d+(\.\d*)?", since):
        raise WrongUse(f"--since takes seconds, such as 90 or -60, not {since!r}")
    last = opened.last_head() if since.startswith("-") else None
    return float(since) + (0.0 if last is None else last.monotonic_s)


def _nothing(opened: TraceFile, question: Question) -> str:
    last = opened.last_head()
    if last is None:
        return f"{opened.path} has no record: nothing had happened yet"
    given = {f"--{name.removesuffix('_s')}": value for name, value in asdict(question).items() if value is not None}
    asked = " and ".join(f"{option} {value}" for option, value in given.items())
    return f"nothing matches {asked} in {opened.path}, whose last record is {last.seq}, at {last.monotonic_s:.3f} s"


def _print(records: Iterator[Record], *, as_table: bool, as_plain: bool) -> int:
    """Returns how many records were shown."""
    console = Console()
    if as_table and console.is_terminal:
        shown = list(islice(records, TABLE_ROWS + 1))
        if len(shown) <= TABLE_ROWS:
            if shown:
                console.print(_table(shown))
            return len(shown)
        records = chain(shown, records)
    count = 0
    for record in records:
        count += 1
        typer.echo(plain_line(record) if as_plain else printable_json(as_json(record)))
        if not as_table:
            sys.stdout.flush()
    return count


def _table(records: list[Record]) -> Table:
    table = Table("seq", "time s", "clock", "event or · note", "what changed", "effects", show_edge=False)
    table.columns[0].justify = table.columns[1].justify = "right"
    for record in records:
        table.add_row(*map(Text, row(record)))
    return table
