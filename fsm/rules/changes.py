"""Changes: what a rule did to the counts, as plain data.

The rules return changes with the new state. The book carries each to the groups and makes effects of it, the trace
records it, and properties look at it. `RULES` says which rules a change carries out.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fsm.effects import StepClosed as StepClosed  # a change that is its own effect
from fsm.errors import EvenstepError
from fsm.events import FailureKind
from fsm.state import GroupClass, State

Picks = tuple[tuple[GroupClass, int], ...]
"""Classes, and how many groups of each."""


class PromptsHeldBack(NamedTuple):
    """Prompts were diverted from the data into the pool."""

    groups: int
    first_prompt: int
    """The first of those that are new; prompts to be generated again come before it (C3)."""


class BatchAdmitted(NamedTuple):
    """A batch was admitted from the data, or from the pool (P2)."""

    groups: int
    target_step: int
    bucket: int
    first_prompt: int
    """As in PromptsHeldBack; NONE for spares."""
    from_spares: bool


class GateMoved(NamedTuple):
    """The gate opened or closed."""

    open: bool


class QueueDispatched(NamedTuple):
    """The first groups of the queue started their first attempt."""

    group_class: GroupClass
    groups: int


class WaitingStarted(NamedTuple):
    """All attempts that waited started, in the order in which they came to wait."""

    start_weight: int


class GroupCommitted(NamedTuple):
    """The event's group is ready."""

    before: GroupClass
    after: GroupClass


class RetryWaits(NamedTuple):
    """An attempt of the event's group failed. The group backs off, or waits to start again."""

    before: GroupClass
    after: GroupClass
    kind: FailureKind
    backs_off: bool


class BackoffEnded(NamedTuple):
    """The backoff of the event's group is over; it waits to start."""

    group_class: GroupClass


class GroupFiltered(NamedTuple):
    """Dynamic sampling filtered the event's group."""

    group_class: GroupClass


class GroupDropped(NamedTuple):
    """The event's group was given up on."""

    group_class: GroupClass
    kind: FailureKind


class GroupReplaced(NamedTuple):
    """A spare took over the slot of the event's group."""

    group_class: GroupClass
    """Of the spare."""


class GroupLost(NamedTuple):
    """The event's group is gone for good."""

    charged_step: int
    """The step that is charged, or NONE."""


class ClaimFailed(NamedTuple):
    """The event's group left the chunk in training."""

    group_class: GroupClass


class ChunkSelected(NamedTuple):
    """Ready groups were taken into the step being trained."""

    step: int
    picks: Picks


class ChunkAccumulated(NamedTuple):
    """The chunk in training is trained."""

    step: int


class StepFinishing(NamedTuple):
    """The optimizer step was asked for."""

    step: int
    selected: int
    charged: int
    short: int
    """Groups that are missing to N where the step closes short at exhaustion; else 0."""


class WeightsSynced(NamedTuple):
    """Every generation worker runs the version."""

    version: int


class GroupsEvicted(NamedTuple):
    """Ready groups were removed, whole classes."""

    picks: Picks


class GroupsAborted(NamedTuple):
    """Running attempts were stopped, whole classes."""

    picks: Picks


class SourceExhausted(NamedTuple):
    """Nothing can come any more."""


class RunResumed(NamedTuple):
    """The run goes on from a checkpoint: groups in flight start again, selected ones are ready again."""

    start_weight: int


class RunRegenerated(NamedTuple):
    """The run goes on under another sampler, N or group size: prompts that are not trained are generated again."""

    groups: int


class DataReplaced(NamedTuple):
    """The run goes on with other data: prompts of the old data that are not trained are dropped."""

    groups: int
    """Dropped prompts, with those that were to be generated again."""


class RunCompleted(NamedTuple):
    """The run is over."""


class RunStopped(NamedTuple):
    """The run is over, with an error."""

    error: EvenstepError


Change = (
    PromptsHeldBack
    | BatchAdmitted
    | GateMoved
    | QueueDispatched
    | WaitingStarted
    | GroupCommitted
    | RetryWaits
    | BackoffEnded
    | GroupFiltered
    | GroupDropped
    | GroupReplaced
    | GroupLost
    | ClaimFailed
    | ChunkSelected
    | ChunkAccumulated
    | StepFinishing
    | StepClosed
    | WeightsSynced
    | GroupsEvicted
    | GroupsAborted
    | SourceExhausted
    | RunResumed
    | RunRegenerated
    | DataReplaced
    | RunCompleted
    | RunStopped
)

Made = tuple[State, Change]
"""The new state, and the change that led to it."""

Done = tuple[State, list[Change]]
"""The new state, and the changes that led to it, in order."""

RULES: Mapping[type[Change], tuple[str, ...]] = {
    PromptsHeldBack: ("P1", "A5"),
    BatchAdmitted: ("A1", "A2", "D3", "P2"),
    GateMoved: ("A1", "A3", "A6"),
    QueueDispatched: ("D1", "D2"),
    WaitingStarted: ("D2",),
    GroupCommitted: ("S2", "L7"),
    RetryWaits: ("D2", "L7"),
    BackoffEnded: ("D2", "L7"),
    GroupFiltered: ("L1", "L8"),
    GroupDropped: ("L7",),
    GroupReplaced: ("L2",),
    GroupLost: ("L3", "L4"),
    ClaimFailed: ("S5",),
    ChunkSelected: ("S1", "S2", "S3", "S4", "X1"),
    ChunkAccumulated: ("L5",),
    StepFinishing: ("L5", "X1"),
    StepClosed: ("L5",),
    WeightsSynced: ("D1",),
    GroupsEvicted: ("E1",),
    GroupsAborted: ("E1",),
    SourceExhausted: ("X1",),
    RunResumed: ("C2",),
    RunRegenerated: ("C3",),
    DataReplaced: ("C3",),
    RunCompleted: ("X1", "X2", "X3"),
    RunStopped: ("L4", "L6", "L7", "L8", "W2"),
}
"""Per kind of change the rules that it carries out."""
