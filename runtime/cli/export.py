"""`evenstep export`: a run for other viewers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.written import saying_why_not, showing_progress, write_beside
from runtime.report.collect import collect
from runtime.report.perfetto import write_events
from runtime.trace.reader import open_trace
from runtime.trace.show import printable


def export_command(
    file: Annotated[Path, typer.Argument(help="trace.jsonl of a run, or the directory that it is in.", metavar="FILE")],
    perfetto: Annotated[
        Path, typer.Option("--perfetto", help="Where the trace events go, for ui.perfetto.dev.", metavar="FILE")
    ],
) -> None:
    """Write a run as trace events, which the Perfetto viewer shows: tracks per worker, for the trainer and for steps;
    flows from a group to the step that trained it; counters for in flight, ready, pool and queue.

    Exit codes: 0 written, 1 the file can't be read, 2 the events can't be written, or the command was used wrongly.

    Example: evenstep export runs/today --perfetto today.json
    """
    events: list[int] = []
    with saying_why_not("export"):
        trace = open_trace(file)
        with showing_progress(trace) as reached:
            collected = collect(trace, reached)
            write_beside(perfetto, lambda opened: events.append(write_events(collected, opened)))
    typer.echo(printable(f"{perfetto}: {events[0]:,} events; open it at ui.perfetto.dev", widest=2_000))
