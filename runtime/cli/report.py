"""`evenstep report`: a run as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.written import saying_why_not, showing_progress, write_beside
from runtime.report.collect import collect
from runtime.report.page import page_of
from runtime.report.verdict import verdict_of
from runtime.trace.reader import open_trace
from runtime.trace.show import printable
from specs.checker.closing import outlook


def report_command(
    file: Annotated[Path, typer.Argument(help="trace.jsonl of a run, or the directory that it is in.", metavar="FILE")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the page goes.")] = Path("report.html"),
) -> None:
    """Write one self-contained page about a run, live or over, that a browser opens without any network.

    It shows explain's verdict, the balance sheet, steps and groups over time, how each step was filled, buffer, pool
    and gate, rewards and lengths, what was waited for; and the life of any prompt, group or step that is searched for.

    Exit codes: 0 written, 1 the file can't be read, 2 the page can't be written, or the command was used wrongly.

    Example: evenstep report runs/today -o report.html
    """
    with saying_why_not("report"):
        trace = open_trace(file)
        with showing_progress(trace) as reached:
            page = page_of(collect(trace, reached), verdict_of(trace, outlook))
        write_beside(output, lambda opened: opened.write(page))
    typer.echo(printable(f"{output}: {len(page) / 1e6:.1f} MB; open it in a browser", widest=2_000))
