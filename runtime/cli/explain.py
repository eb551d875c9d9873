"""`evenstep explain`: what a run waits for, down to the root. `evenstep status`: where a live run stands."""

import dataclasses
import datetime
import json
import math
import re
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from runtime.cli.common import WrongUse, errors_as_exit_codes
from runtime.explain.explanation import EXIT, NEVER_BEGAN, START_AGAIN, Explanation, explain, explain_now
from runtime.explain.live import NoController, NotReachable, live_lines, standing_of, trace_of
from runtime.explain.printed import printed
from runtime.output.cluster_file import LivePlace, place_of
from runtime.output.directory import CLUSTER, MARK, RUN, is_between_processes, is_left
from runtime.output.restart_file import interrupt_in, restart_in
from runtime.settings import ClusterConfig
from runtime.trace.files import TraceUnreadable, find_trace, has_trace, older_traces, parts_of
from runtime.trace.notes import RunEnded
from runtime.trace.reader import TraceFile, open_trace
from runtime.trace.records import printable_json
from runtime.trace.select import NotInTrace
from runtime.trace.show import printable_lines
from specs.checker.closing import outlook

_SEQ = re.compile("[0-9]{1,18}")
"""A record's number."""
_SHOWN = 80
"""Characters of a wrong --at that are shown."""
PIPED_WIDTH = 200
"""Columns of the table if the output is no terminal. Lines of text are never wrapped there."""
_NAMESPACE = ClusterConfig().namespace
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def explain_command(
    file: Annotated[
        Path | None, typer.Argument(help="The trace.jsonl of a run, or the run's directory.", metavar="FILE")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", help="Instead of FILE: a live run, by its cluster.run_name.", metavar="NAME"),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="Explain an earlier moment: a record's number, +SECONDS into the trace, or a time such as 14:03:20 or "
            "2026-01-31T14:03:20. A time may be that of an older process of a resumed run.",
            metavar="SEQ|TIME",
        ),
    ] = None,
    as_json: JsonOption = False,
    address: Annotated[str, typer.Option("--address", help="With --run: the Ray cluster.")] = "auto",
    namespace: Annotated[str, typer.Option("--namespace", help="With --run: cluster.namespace.")] = _NAMESPACE,
) -> None:
    """Explain what a live or dead run waits for: since when, whether that can still come, and what to change.

    Verdicts of a run that is not over, and their exit codes:

    - healthy (0): nothing is wrong
    - slow (0): the rollouts that the step needs run, at a usual age
    - starved (4): dynamic sampling filters nearly every group
    - stalled (5): the trainer, a sync or a rollout does not answer
    - livelocked (6): events can still come, but the step can never close
    - deadlocked (7): no event can come any more

    Verdicts of a run that is over: completed (0), stopped (1), failed (1), interrupted (130), as from evenstep train.

    Other exit codes: 1 the trace cannot be read or the run cannot be reached, 2 the command was used wrongly.

    Example: evenstep explain runs/today --at 14:03:20
    """
    with errors_as_exit_codes("explain"), ExitStack() as opened:
        if at is None and file is not None and file.is_dir() and _has_no_trace_yet(file):
            raise NotReachable(f"{_being_started(file)}. How its last process ended: evenstep trace {file}")
        explanation = _explain(_at(at, _trace(file, run, address, namespace, opened), file), at)
        _print(explanation, as_json)
    raise typer.Exit(EXIT[explanation.verdict])


def _trace(file: Path | None, run: str | None, address: str, namespace: str, opened: ExitStack) -> TraceFile:
    if file is not None and run is None:
        if (file / MARK).is_file() and not has_trace(file):
            starts = "the run has not begun: its actors are being started; ask again"
            raise NotReachable(f"{NEVER_BEGAN}: {START_AGAIN}" if is_left(file) else starts)
        return open_trace(file)
    if run is None or file is not None:
        raise WrongUse("give either the FILE of a trace or --run NAME")
    copy = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "live.ring-1.jsonl"
    copy.write_bytes(trace_of(run, address, namespace))
    return open_trace(copy)


def _explain(trace: TraceFile, at: str | None) -> Explanation:
    if at is None:
        return explain_now(trace, outlook)
    if _SEQ.fullmatch(at):
        explanation = explain(trace, outlook, seq=int(at))
        if (last := explanation.situation.moment.seq) < int(at):
            raise WrongUse(f"--at {at} is beyond the trace, whose last record is {last}")
        return explanation
    return explain(trace, outlook, unix_s=_time(at, trace.started_unix_s))


def _at(at: str | None, newest: TraceFile, given: Path | None) -> TraceFile:
    """The trace that has a time, of all those in a run's directory; else the newest."""
    if at is None or _SEQ.fullmatch(at) or at.startswith("+") or given is None or not given.is_dir():
        return newest
    for path in (newest.path, *reversed(older_traces(newest.path))):
        trace = newest if path == newest.path else open_trace(path)
        if trace.started_unix_s <= _time(at, trace.started_unix_s) <= time.time():
            if trace is not newest:
                typer.echo(
                    printable_lines(f"evenstep explain: {at} is in {path}, an older trace of this run"), err=True
                )
            return trace
    return newest


def _time(at: str, started_unix_s: float) -> float:
    """A wall time in seconds. A time without a date is the first such time after the trace was opened."""
    try:
        if at.startswith("+"):
            if not math.isfinite(seconds := float(at[1:])):
                raise ValueError("no finite number of seconds")
            return started_unix_s + seconds
        if "T" in at or "-" in at:
            return datetime.datetime.fromisoformat(at).timestamp()
        opened = datetime.datetime.fromtimestamp(started_unix_s)
        moment = datetime.datetime.combine(opened.date(), datetime.time.fromisoformat(at))
    except (ValueError, OverflowError) as error:
        raise WrongUse(
            f"--at {at[:_SHOWN]!r} is no moment ({error!s:.{_SHOWN}}); allowed: a record's number, +SECONDS, 14:03:20, "
            "or 2026-01-31T14:03:20"
        ) from None
    if moment < opened.replace(microsecond=0):
        moment += datetime.timedelta(days=1)
    return moment.timestamp()


def _print(explanation: Explanation, as_json: bool) -> None:
    if as_json:
        typer.echo(printable_json(explanation.as_json()))
        return
    plain: Any = {"highlight": False, "markup": False, "emoji": False}
    if Console().is_terminal:
        Console(**plain).print(printed(explanation))
    else:
        Console(width=PIPED_WIDTH, **plain).print(printed(explanation), soft_wrap=True)


def status_command(
    directory: Annotated[
        Path | None, typer.Argument(help="The directory of a live run on this machine or cluster.", metavar="DIRECTORY")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", help="Instead of DIRECTORY: the run, by its cluster.run_name.", metavar="NAME"),
    ] = None,
    address: Annotated[
        str, typer.Option("--address", help="With --run: the Ray cluster; auto: any that runs on this machine.")
    ] = "auto",
    namespace: Annotated[str, typer.Option("--namespace", help="With --run: cluster.namespace.")] = _NAMESPACE,
    as_json: JsonOption = False,
) -> None:
    """Print once where a live run stands: its step, where its groups are, and what it waits for.

    Exit codes: 0 printed, 1 the run cannot be reached, 2 the command was used wrongly.

    Example: evenstep status runs/today
    """
    with errors_as_exit_codes("status"):
        place = _place(directory, run, address, namespace)
        try:
            standing = standing_of(*place)
        except NoController:
            if directory is None:
                raise
            raise NotReachable(_being_started(directory)) from None
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(standing)))
        return
    for line in live_lines(standing):
        typer.echo(line)


def _place(directory: Path | None, run: str | None, address: str, namespace: str) -> LivePlace:
    """Where the run is reached. Raises WrongUse, and NotReachable for a directory in which none runs."""
    if directory is None and run is not None:
        return LivePlace(run, address, namespace)
    if directory is None or run is not None:
        raise WrongUse("give either the DIRECTORY of a live run or --run NAME")
    if not directory.is_dir():
        raise WrongUse(f"{directory} is no directory; name that of a run, or give --run NAME")
    if is_left(directory):
        raise NotReachable(f"no process runs in {directory}: evenstep explain {directory} says how its run ended")
    place = None if is_between_processes(directory) else place_of(directory)
    if place is None and (is_between_processes(directory) or _end_of(directory) is not None):
        raise NotReachable(_being_started(directory))
    if place is None:
        raise NotReachable(
            f"{directory} has no {CLUSTER}: its run starts at this moment, or is of an older evenstep; ask again, or "
            "give its name with --run, and its cluster with --address"
        )
    return place


def _has_no_trace_yet(directory: Path) -> bool:
    """Whether the newest trace of a directory is of an older process than the one that runs, or will run, there."""
    if not has_trace(directory) or is_left(directory):
        return False
    if is_between_processes(directory):
        return _end_of(directory) is None
    try:
        last_s = parts_of(find_trace(directory))[-1].stat().st_mtime
        return (directory / CLUSTER).stat().st_mtime > last_s
    except OSError:  # the run ends at this moment, or could not note where it is reached
        return False


def _end_of(directory: Path) -> RunEnded | None:
    """How the process that still holds a run's directory ended its run; None while it starts or restarts one.

    A process that takes the directory touches its run.json, so a trace that is older is of a process before it.
    """
    if not has_trace(directory) or restart_in(directory) is not None:
        return None
    try:
        trace = open_trace(directory)
        is_older = trace.parts[-1].stat().st_mtime < (directory / RUN).stat().st_mtime
        if is_older or not (trace.closed or interrupt_in(trace.path)):
            return None
        return explain_now(trace, outlook).situation.ended
    except (OSError, TraceUnreadable, NotInTrace):
        return None


def _being_started(directory: Path) -> str:
    if (ended := _end_of(directory)) is not None:
        may_restart = "; it is restarted if its cause may pass" if ended.status == "failed" else ""
        return (
            f"the run in {directory} is ending: {ended.said.removeprefix('the run ')}; what it saves is saved, and its "
            f"processes are being closed{may_restart}. evenstep explain {directory} says how it ended"
        )
    happens = f"being restarted ({restart})" if (restart := restart_in(directory)) else "being started or restarted"
    return f"the run in {directory} is {happens}: it has no controller yet; ask again"
