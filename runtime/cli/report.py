"""`evenstep report`: a trace as one page."""

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.common import errors_as_exit_codes, showing_progress, write_whole
from runtime.report.collect import collect
from runtime.report.page import page_of, verdict_of
from runtime.report.samples import samples_beside
from runtime.report.traces import Older, older_of
from runtime.trace.reader import open_trace
from runtime.trace.show import printable_lines
from specs.checker.closing import outlook


def report_command(
    file: Annotated[
        Path,
        typer.Argument(help="The run's directory, or one trace.jsonl, which is then shown alone.", metavar="FILE"),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page about a run, live or over. A browser opens it without any network.

    The page shows explain's verdict, the balance sheet, steps and groups over time, how each step was filled, buffer,
    pool and gate, rewards and lengths, what the trainer waited for, and samples of what the policy said, with a search
    (they are read from samples.jsonl beside the trace). Search the page for a prompt, group or step to see its life
    from start to end.

    If the run was resumed or restarted, the page of its directory joins the traces of all its processes. It says where
    each went on; a step that was done again is shown once, as it was done last.

    Exit codes: 0 written, 1 the trace cannot be read, 2 the page cannot be written or the command was used wrongly.

    Example: evenstep report runs/today -o report.html
    """
    with errors_as_exit_codes("report"):
        trace = open_trace(file)
        older = older_of(trace) if file.is_dir() else Older((), None)
        if older.left_out is not None:
            typer.echo(
                printable_lines(f"evenstep report: the run's first traces are left out: {older.left_out}"), err=True
            )
        with showing_progress(*older.traces, trace) as reached:
            collected = collect(trace, reached, older.traces)
            page = page_of(collected, verdict_of(trace, outlook), samples_beside(trace.path))
        write_whole(output, lambda opened: opened.write(page))
    typer.echo(printable_lines(f"{output}: {len(page) / 1e6:.1f} MB; open it in a browser"))
