"""The vocabulary of happenings: which events make a change, by which rules, which effects follow, under which codes.

`HAPPENINGS` states for each change what makes it and what follows; tests/docs holds that against every scenario. Rules,
names, codes and descriptions come from the code. `evenstep diagram --write` puts the table into docs/architecture.md.
"""

import inspect
from typing import Any, NamedTuple

from fsm import effects, events
from fsm.rules import changes
from runtime.trace.kinds import CODES


class Happening(NamedTuple):
    """One change: what makes it, and which effects follow from it."""

    change: type[Any]
    events: tuple[type[Any], ...]
    """Events whose own rule makes the change."""
    effects: tuple[type[Any], ...] = ()
    own_move: bool = False
    """The core makes the change by itself, after any event."""

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """Cells of the table: events, rules, change, what happened, effects; each kind with its trace code."""
        made_by = [_named(event) for event in self.events] + ["any (own move)"] * self.own_move
        said = inspect.cleandoc(self.change.__doc__ or "").partition("\n")[0]
        rules = ", ".join(changes.RULES[self.change])
        return ", ".join(made_by), rules, _named(self.change), said, ", ".join(map(_named, self.effects)) or "–"


_FAILS = (events.GroupFinished, events.GroupFailed)

HAPPENINGS = (
    Happening(changes.RunResumed, (events.Begin,), (effects.StartRollout,)),
    Happening(changes.RunRegenerated, (events.Begin,), (effects.ClearRows,)),
    Happening(changes.DataReplaced, (events.Begin,), (effects.ClearRows,)),
    Happening(changes.PromptsHeldBack, (), own_move=True),
    Happening(changes.GateMoved, (), own_move=True),
    Happening(changes.BatchAdmitted, (), own_move=True),
    Happening(changes.QueueDispatched, (), (effects.StartRollout,), own_move=True),
    Happening(changes.WaitingStarted, (), (effects.StartRollout,), own_move=True),
    Happening(changes.GroupCommitted, (events.GroupFinished,)),
    Happening(changes.RetryWaits, (events.GroupFailed,), (effects.StartBackoff,)),
    Happening(changes.BackoffEnded, (events.BackoffOver,)),
    Happening(changes.GroupFiltered, (events.GroupFinished,), (effects.ClearRows,)),
    Happening(changes.GroupDropped, (events.GroupFailed,), (effects.ClearRows,)),
    Happening(changes.GroupReplaced, _FAILS),
    Happening(changes.GroupLost, (*_FAILS, events.ClaimUnreadable)),
    Happening(changes.ChunkSelected, (), (effects.TrainChunk,), own_move=True),
    Happening(changes.ClaimFailed, (events.ClaimUnreadable,), (effects.ClearRows,)),
    Happening(changes.ChunkAccumulated, (events.ChunkTrained,)),
    Happening(changes.StepFinishing, (), (effects.FinishStep,), own_move=True),
    Happening(changes.StepClosed, (events.StepFinished,), (effects.StepClosed, effects.ClearRows, effects.SyncWeights)),
    Happening(changes.GroupsAborted, (events.StepFinished,), (effects.AbortRollout,)),
    Happening(changes.WeightsSynced, (events.SyncFinished,)),
    Happening(changes.GroupsEvicted, (), (effects.ClearRows,), own_move=True),
    Happening(changes.SourceExhausted, (), own_move=True),
    Happening(changes.RunCompleted, (), (effects.Completed,), own_move=True),
    Happening(
        changes.RunStopped,
        (*_FAILS, events.ClaimUnreadable, events.StepFinished, events.StallTimeout, events.DeadEndReached),
        (effects.Stopped,),
        own_move=True,
    ),
)
"""In the order of a run: it opens, admits, dispatches, generates, selects, trains, closes, syncs and ends."""


def table() -> str:
    """The vocabulary as a Markdown table, one row per happening."""
    head = ("event", "rules", "change", "what happened", "effects")
    rows = [head, ("---",) * len(head), *(happening.row for happening in HAPPENINGS)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _named(kind: type[Any]) -> str:
    return f"{kind.__name__} `{CODES[kind]}`"
