"""The control core of evenstep: explicit state machines without I/O, clock or randomness.

To embed the core, `from fsm import …` the names in `__all__`: docs/embedding_the_core.md has a whole driver. To change
a rule, read on, then open the one folder that the list below names.

**What is in a table, and what is a function.** A machine is a small value (a NamedTuple of integers with a status) and
a table of rules: from which states an event leads to which, under which guards, with which update (`fsm.machines`).
A table is data, so one declaration is fired in production through `transitions`, fired as a plain function by the
checker, handed to CrossHair rule by rule, and drawn in docs/generated/machines.md. Seven machines exist once or once a
step: AdmissionGate, Source, SparePool, StepAssembly, ShortfallLedger, Trainer and Run. The eighth, PromptGroup, is the
life of every group. It is a table like the others, but groups are moved as counts, so there is no object per group.

What involves two machines is a function, because no table may know another. A selection moves the step, the trainer
and the counts of ready groups: `fsm.rules.own_moves.select` fires both tables and returns one new state. A question
that only the configuration can answer is also a function: which groups are eligible and when the gate is open are
methods of the sampler (`fsm.samplers`).

**Counts decide, the roster follows.** The state (`fsm.state`) says how many groups there are of each class. A class is
what a rule can see of a group: its target step or bucket, its start weight, the replacements that its slot has used,
and a custom sampler's label. Groups of one class are interchangeable, so the rules never name a prompt. The roster
(`fsm.groups`) knows the prompts: which ones are in a class, in order of dispatch, and how often each has failed. It
carries out what the rules decided on counts. One decision needs it: by the attempts that a prompt has had, `Core._fail`
retries a failed attempt or gives it up (L7).

**The way of one event** through `Core.apply`:

1. *Event.* The driver reports one thing that happened (`fsm.events`), such as `GroupFinished(attempt, …)`.
2. *Legality.* The core compares the event with the roster and the trainer's state. It raises IllegalEvent, or
   LateAnswer for an attempt that is over (D2), before anything changes.
3. *Rule on counts.* One function in `fsm.rules.on_event` makes the event's transition. It takes the immutable state and
   the group's class, and returns the next state and a list of changes (`fsm.rules.changes`): plain records such as
   `GroupFiltered` or `StepClosed`.
4. *Own moves.* `fsm.rules.own_moves` then makes the core's own moves: the first that applies of a fixed list, again and
   again until none does. It selects a chunk, finishes the step, admits a batch, dispatches. Nothing polls (A3).
5. *Invariants.* `fsm.groups.invariants.check` asserts that every step comes out even and every prompt is in one place.
   It runs in production, at a cost that does not depend on the number of groups. InvariantBroken means a defect of
   evenstep.
6. *Roster.* The book (`fsm.groups.book`) applies each change to the roster, in order, and learns which prompts it
   meant.
7. *Effects.* The same changes become effects (`fsm.effects`), and the observer gets event, changes and effects as one
   AppliedEvent; the trace is written from these. The driver carries the effects out in order and reports how they
   ended, which is the next event.

Nothing else writes the state of a core that has begun. The same events give the same effects and the same snapshot,
byte for byte.

**Where a rule lives.** docs/rules.md has the numbered rules. Search this folder for the number: a rule of one machine
is a line of its table, a rule of several is the function that cites it. docs/generated/rules_to_tests.md leads on to
its scenarios and tests.

**What to touch.** In `fsm.core` the legality of events and the order of the steps above; a rule goes into its table or
into `fsm.rules`, where `evenstep check` explores it. Anything that fails must fail before the state changes.

Each part imports only those above it:

    wording        numbers with nouns, in messages
    errors         who is to blame, and for what
    events         what the world tells the core
    effects        what the core asks of the world
    values         counts per class, and updates of a tuple's fields
    machines       one rule table a file, and the driver that fires their rules
    state          the whole state, as immutable values, and what a sampler sees of it
    samplers       which batch may start, and which groups a step is made of
    config         the configuration: parsed, checked as a whole, made into limits and a sampler
    rules          what an event does, and what the core then does by itself
    groups         which prompt is which: the roster, and the effects that its groups need
    explain        what a run waits for, in one sentence
    core           `Core.apply`: the only writer
    snapshot_form  what a snapshot must be before a core goes on from it
    snapshot       the control part of a checkpoint, to and from JSON
"""

from fsm.config.blocks import RunConfig
from fsm.config.parse import parse_config
from fsm.config.setup import Setup, set_up
from fsm.core import AppliedEvent, Core
from fsm.effects import (
    AbortRollout,
    ClearReason,
    ClearRows,
    Completed,
    Effect,
    FinishStep,
    SelectedGroup,
    StartBackoff,
    StartRollout,
    StepClosed,
    Stopped,
    SyncWeights,
    TrainChunk,
)
from fsm.errors import (
    BelowFloor,
    BudgetExceeded,
    ConfigError,
    Deadlocked,
    EvenstepError,
    IllegalEvent,
    IllegalSnapshot,
    InvariantBroken,
    LateAnswer,
    LimitReached,
    SamplerError,
    SearchExceeded,
    Stalled,
)
from fsm.events import (
    Attempt,
    BackoffOver,
    Begin,
    ChunkTrained,
    ClaimUnreadable,
    DeadEndReached,
    Event,
    FailureKind,
    GroupFailed,
    GroupFinished,
    GroupRecord,
    StallTimeout,
    StepFinished,
    SyncFinished,
)
from fsm.samplers.protocol import (
    Admission,
    DropAccountingSampler,
    GatedSampler,
    LabellingSampler,
    PromptGroupSampler,
)
from fsm.snapshot import for_other_data, restore
from fsm.snapshot import snapshot as take_snapshot
from fsm.state import GroupClass, Limits, View

__all__ = [
    "AbortRollout",
    "Admission",
    "AppliedEvent",
    "Attempt",
    "BackoffOver",
    "Begin",
    "BelowFloor",
    "BudgetExceeded",
    "ChunkTrained",
    "ClaimUnreadable",
    "ClearReason",
    "ClearRows",
    "Completed",
    "ConfigError",
    "Core",
    "DeadEndReached",
    "Deadlocked",
    "DropAccountingSampler",
    "Effect",
    "EvenstepError",
    "Event",
    "FailureKind",
    "FinishStep",
    "GatedSampler",
    "GroupClass",
    "GroupFailed",
    "GroupFinished",
    "GroupRecord",
    "IllegalEvent",
    "IllegalSnapshot",
    "InvariantBroken",
    "LabellingSampler",
    "LateAnswer",
    "LimitReached",
    "Limits",
    "PromptGroupSampler",
    "RunConfig",
    "SamplerError",
    "SearchExceeded",
    "SelectedGroup",
    "Setup",
    "StallTimeout",
    "Stalled",
    "StartBackoff",
    "StartRollout",
    "StepClosed",
    "StepFinished",
    "Stopped",
    "SyncFinished",
    "SyncWeights",
    "TrainChunk",
    "View",
    "for_other_data",
    "parse_config",
    "restore",
    "set_up",
    "take_snapshot",
]
