"""`evenstep explain`: what a run waits for, down to the root, and what to change."""

from __future__ import annotations

import datetime
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fsm.errors import ConfigError
from runtime.explain.explanation import EXIT, Explanation, explain
from runtime.explain.remote import NotReachable, trace_of
from runtime.explain.sheet import sheet
from runtime.explain.situation import is_open
from runtime.settings import ClusterConfig
from runtime.trace.files import TraceUnreadable
from runtime.trace.reader import TraceFile, open_trace
from runtime.trace.records import printable_json
from runtime.trace.show import printable
from specs.checker.closing import outlook

UNREADABLE, WRONG_USE = 1, 2
"""Exit codes beside those of `EXIT`."""
PIPED_WIDTH = 200
"""Columns of the table where the output is no terminal; lines of text are as long as they are."""
_CLUSTER = ClusterConfig()


def explain_command(
    file: Annotated[
        Path | None, typer.Argument(help="The trace.jsonl of a run, or the run's directory.", metavar="[FILE]")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Instead of a file a live run, by its cluster.run_name.", metavar="NAME")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="The moment: a record's number, +SECONDS into the trace, or a time as 14:03:20 or "
            "2026-01-31T14:03:20. Without it, now.",
            metavar="SEQ|TIME",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    address: Annotated[str, typer.Option("--address", help="With --run: the Ray cluster.")] = "auto",
    namespace: Annotated[str, typer.Option("--namespace", help="With --run: cluster.namespace.")] = _CLUSTER.namespace,
) -> None:
    """Say what a live or dead run waits for, down to the root, since when, whether it can still come, and why not.

    Verdicts and exit codes of a run that is over, as of evenstep train: completed 0, stopped 1, failed 1,
    interrupted 130. Of one that goes on: healthy 0, slow 0 (what the step needs is in flight, at a usual age),
    starved 4 (everything is filtered), stalled 5 (something asked of the world does not answer), livelocked 6
    (something can still happen, but the step can never close), deadlocked 7 (nothing can ever happen). 1 too: the
    trace can't be read, or the run can't be reached. 2: the command was used wrongly.

    Example: evenstep explain runs/today --at 14:03:20
    """
    try:
        with ExitStack() as opened:
            explanation = _explain(_trace(file, run, address, namespace, opened), at)
            _print(explanation, as_json)
    except _WrongUse as error:
        typer.echo(f"evenstep explain: {error}", err=True)
        raise typer.Exit(WRONG_USE) from None
    except (TraceUnreadable, ConfigError, NotReachable) as error:
        said = "\n".join(printable(line, widest=len(line)) for line in str(error).splitlines())
        typer.echo(f"evenstep explain: {said}", err=True)
        raise typer.Exit(UNREADABLE) from None
    raise typer.Exit(EXIT[explanation.verdict])


class _WrongUse(Exception):
    """The command was used wrongly."""


def _trace(file: Path | None, run: str | None, address: str, namespace: str, opened: ExitStack) -> TraceFile:
    if (file is None) == (run is None):
        raise _WrongUse("give either the FILE of a trace or --run NAME")
    if file is not None:
        return open_trace(file)
    assert run is not None, "one of the two is given"
    copy = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "live.ring-1.jsonl"
    copy.write_bytes(trace_of(run, address, namespace))
    return open_trace(copy)


def _explain(trace: TraceFile, at: str | None) -> Explanation:
    if at is None:
        return explain(trace, outlook, unix_s=time.time() if is_open(trace) else None)
    if at.isdigit():
        return explain(trace, outlook, seq=int(at))
    return explain(trace, outlook, unix_s=_time(at, trace.started_unix_s))


def _time(at: str, started_unix_s: float) -> float:
    """A wall time in seconds. Of a time alone, the first one after the trace was opened."""
    try:
        if at.startswith("+"):
            return started_unix_s + float(at[1:])
        if "T" in at or "-" in at:
            return datetime.datetime.fromisoformat(at).timestamp()
        opened = datetime.datetime.fromtimestamp(started_unix_s)
        moment = datetime.datetime.combine(opened.date(), datetime.time.fromisoformat(at))
    except ValueError as error:
        raise _WrongUse(
            f"--at {at!r} is no moment ({error}); allowed: a record's number, +SECONDS, 14:03:20, or "
            f"2026-01-31T14:03:20"
        ) from None
    if moment < opened.replace(microsecond=0):
        moment += datetime.timedelta(days=1)
    return moment.timestamp()


def _print(explanation: Explanation, as_json: bool) -> None:
    if as_json:
        typer.echo(printable_json(json.loads(json.dumps(explanation.as_json()))))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        console.print(sheet(explanation))
    else:
        Console(highlight=False, markup=False, emoji=False, width=PIPED_WIDTH).print(sheet(explanation), soft_wrap=True)
