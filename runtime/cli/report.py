"""`evenstep report`: a trace as one page."""

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.common import TraceArgument, errors_as_exit_codes, showing_progress, tell_older_traces, write_whole
from runtime.report.collect import collect
from runtime.report.page import page_of, verdict_of
from runtime.report.samples import samples_beside
from runtime.trace.reader import open_trace
from runtime.trace.show import printable_lines
from specs.checker.closing import outlook


def report_command(
    file: TraceArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page about a run, live or over. A browser opens it without any network.

    The page shows explain's verdict, the balance sheet, steps and groups over time, how each step was filled, buffer,
    pool and gate, rewards and lengths, what the trainer waited for, and samples of what the policy said, with a search
    (they are read from samples.jsonl beside the trace). Search the page for a prompt, group or step to see its life
    from start to end.

    Exit codes: 0 written, 1 the trace can't be read, 2 the page can't be written or the command was used wrongly.

    Example: evenstep report runs/today -o report.html
    """
    with errors_as_exit_codes("report"):
        trace = open_trace(file)
        tell_older_traces("report", file, trace)
        with showing_progress(trace) as reached:
            page = page_of(collect(trace, reached), verdict_of(trace, outlook), samples_beside(trace.path))
        write_whole(output, lambda opened: opened.write(page))
    typer.echo(printable_lines(f"{output}: {len(page) / 1e6:.1f} MB; open it in a browser"))
