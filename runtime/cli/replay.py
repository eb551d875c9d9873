"""`evenstep replay`: a recorded run against today's core, and against the properties."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsm.core import AppliedEvent, Core
from fsm.errors import ConfigError
from fsm.events import (
    BackoffOver,
    Begin,
    ChunkTrained,
    ClaimUnreadable,
    DeadEndReached,
    FailureKind,
    GroupFailed,
    GroupFinished,
    StallTimeout,
    StepFinished,
    SyncFinished,
)
from fsm.rules.changes import GroupDropped, GroupFiltered, RetryWaits, RunResumed
from fsm.rules.laws import Laws
from fsm.state import State
from runtime.trace.files import TraceUnreadable
from runtime.trace.replay import ReplayResult, replay
from runtime.trace.show import printable
from specs.model import Answer
from specs.properties.catalog import EDGES
from specs.properties.kinds import Transition as Answered
from specs.properties.states import ALWAYS

SAME, UNREADABLE, DIFFERS = 0, 1, 2
"""Exit codes."""
_ANSWERS = {
    BackoffOver: "end_backoff",
    ChunkTrained: "chunk_trained",
    ClaimUnreadable: "claim_failed",
    StepFinished: "step_finished",
    SyncFinished: "weights_synced",
    StallTimeout: "stall",
    DeadEndReached: "stall",
}


def replay_command(
    file: Annotated[Path, typer.Argument(help="trace.jsonl of a run, or the directory that it is in.", metavar="FILE")],
    to: Annotated[int | None, typer.Option("--to", help="Stop after this record.", metavar="SEQ")] = None,
) -> None:
    """Feed the recorded events of a run to the core of today, and compare all that it does.

    Compared are moves and effects after every event, and the state at every snapshot; the properties of states and
    of transitions are checked on the way. The first difference is shown in full.

    Exit codes: 0 the same, 1 the file can't be read, 2 something differs or does not hold.

    Example: evenstep replay runs/today/trace.jsonl --to 5000
    """
    try:
        result = replay(file, to=to, check=_broken)
    except (TraceUnreadable, ConfigError) as error:
        typer.echo(f"evenstep replay: {_lines(str(error))}", err=True)
        raise typer.Exit(UNREADABLE) from None
    typer.echo(_lines(_summary(result)))
    if result.difference is not None:
        typer.echo(_lines(str(result.difference)))
        raise typer.Exit(DIFFERS)


def _broken(core: Core, before: State, transition: AppliedEvent) -> str | None:
    """The first property that does not hold of a transition, or of the state after it."""
    laws: Laws = core.laws
    answered = Answered(before, Answer(_answer(transition)), transition.changes, core.state)
    for edge in EDGES:
        if not edge.holds(answered, laws):
            return f"property {edge.name} does not hold ({', '.join(edge.rules)}): {edge.sentence}"
    for always in ALWAYS:
        if not always.holds(core.state, laws):
            return f"property {always.name} does not hold ({', '.join(always.rules)}): {always.sentence}"
    return None


def _answer(transition: AppliedEvent) -> str:
    """What the properties call an event."""
    event = transition.event
    kinds = {type(move): move for move in transition.changes}
    if isinstance(event, Begin):
        return "crash" if RunResumed in kinds else "begin"
    if isinstance(event, GroupFinished):
        return "filter" if GroupFiltered in kinds else "commit"
    if isinstance(event, GroupFailed):
        if GroupDropped in kinds:
            return "drop" if event.kind is FailureKind.INFRA else "skip"
        retry = kinds.get(RetryWaits)
        return "back_off" if isinstance(retry, RetryWaits) and retry.backs_off else "retry"
    return _ANSWERS[type(event)]


def _summary(result: ReplayResult) -> str:
    same = "the same" if result.difference is None else "the same, then a difference"
    stands = f"the run is {result.status}: {result.waits_for}" if result.ended is None else result.ended.said
    torn = " The last line is torn and was left out." if result.torn else ""
    return (
        f"records {result.first_seq} to {result.last_seq}: {result.events:,} events answered {same}, "
        f"{result.snapshots:,} snapshots equal; {len(ALWAYS) + len(EDGES)} properties checked after each.{torn}\n"
        f"{stands}"
    )


def _lines(text: str) -> str:
    """Printable, line by line, and uncut: a difference is shown in full."""
    return "\n".join(printable(line, widest=len(line)) for line in text.splitlines())
