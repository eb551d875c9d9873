"""`evenstep report` and `evenstep export`: a trace as one page, or as events for the Perfetto viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.common import TraceArgument, errors_as_exit_codes, showing_progress, write_whole
from runtime.report.collect import collect
from runtime.report.page import page_of, verdict_of
from runtime.report.perfetto import write_events
from runtime.trace.reader import open_trace
from runtime.trace.show import printable_lines
from specs.checker.closing import outlook


def report_command(
    file: TraceArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page about a run, live or over. A browser opens it without any network.

    The page shows explain's verdict, the balance sheet, steps and groups over time, how each step was filled, buffer,
    pool and gate, rewards and lengths, and what the trainer waited for. Search it for a prompt, group or step to see
    its life from start to end.

    Exit codes: 0 written, 1 the trace can't be read, 2 the page can't be written or the command was used wrongly.

    Example: evenstep report runs/today -o report.html
    """
    with errors_as_exit_codes("report"):
        trace = open_trace(file)
        with showing_progress(trace) as reached:
            page = page_of(collect(trace, reached), verdict_of(trace, outlook))
        write_whole(output, lambda opened: opened.write(page))
    typer.echo(printable_lines(f"{output}: {len(page) / 1e6:.1f} MB; open it in a browser"))


def export_command(
    file: TraceArgument,
    perfetto: Annotated[
        Path, typer.Option("--perfetto", help="The file of trace events to write, for ui.perfetto.dev.", metavar="FILE")
    ],
) -> None:
    """Write a run as trace events for the Perfetto viewer.

    The viewer then shows one track per rollout slot of each worker, the trainer's phases and calls, the steps, counters
    for in flight, ready, pool and queue, and an arrow from every trained group to its step.

    Exit codes: 0 written, 1 the trace can't be read, 2 the events can't be written or the command was used wrongly.

    Example: evenstep export runs/today --perfetto today.json
    """
    events: list[int] = []
    with errors_as_exit_codes("export"):
        trace = open_trace(file)
        with showing_progress(trace) as reached:
            collected = collect(trace, reached)
            write_whole(perfetto, lambda opened: events.append(write_events(collected, opened)))
    typer.echo(printable_lines(f"{perfetto}: {events[0]:,} events; open it at ui.perfetto.dev"))
