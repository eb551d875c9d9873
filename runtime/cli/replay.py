"""`evenstep replay`: feed a recorded run to today's core, and check the properties on the way."""

from typing import Annotated

import typer

from fsm import events
from fsm.core import AppliedEvent, Core
from fsm.events import Begin, FailureKind, GroupFailed, GroupFinished
from fsm.rules.changes import GroupDropped, GroupFiltered, RetryWaits, RunResumed
from fsm.rules.laws import Laws
from fsm.state import State
from runtime.cli.common import TraceArgument, errors_as_exit_codes
from runtime.trace.replay import Replay, replay
from runtime.trace.show import printable_lines
from runtime.wording import counted
from specs.model import Answer
from specs.properties.catalog import EDGES
from specs.properties.kinds import Transition as Answered
from specs.properties.states import ALWAYS

DIFFERS = 2
"""Exit code."""
_ANSWERS = {
    events.BackoffOver: "end_backoff",
    events.ChunkTrained: "chunk_trained",
    events.ClaimUnreadable: "claim_failed",
    events.StepFinished: "step_finished",
    events.SyncFinished: "weights_synced",
    events.StallTimeout: "stall",
    events.DeadEndReached: "stall",
}


def replay_command(
    file: TraceArgument,
    to: Annotated[int | None, typer.Option("--to", help="Stop after this record.", metavar="SEQ")] = None,
) -> None:
    """Feed the recorded events of a run to this evenstep's core, and compare what it does.

    Replay compares changes and effects after every event and the state at every snapshot, and checks the properties of
    states and transitions on the way. It stops at the first difference and shows it in full.

    Exit codes: 0 no difference, 1 the trace cannot be read, 2 something differs or a property does not hold.

    Example: evenstep replay runs/today/trace.jsonl --to 5000
    """
    with errors_as_exit_codes("replay"):
        result = replay(file, to=to, check=_broken)
    typer.echo(printable_lines(_summary(result)))
    if result.difference is not None:
        typer.echo(printable_lines(str(result.difference)))
        raise typer.Exit(DIFFERS)


def _broken(core: Core, before: State, transition: AppliedEvent) -> str | None:
    """The first property that a transition, or the state after it, violates."""
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
    """The name of an event among the properties."""
    event = transition.event
    kinds = {type(change): change for change in transition.changes}
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


def _summary(result: Replay) -> str:
    same = "the same" if result.difference is None else "the same, then a difference"
    stands = f"the run is {result.status}: {result.core.waits_for()}" if result.ended is None else result.ended.said
    torn = " The last line is torn and was skipped." if result.trace.torn else ""
    return (
        f"records {result.first_seq} to {result.last_seq}: {counted(result.events, 'event')} answered {same}, "
        f"{result.snapshots:,} snapshots equal; {len(ALWAYS) + len(EDGES)} properties checked after each.{torn}\n"
        f"{stands}"
    )
