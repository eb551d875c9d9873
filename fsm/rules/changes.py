"""What a transition did, as plain data: the roster carries it to groups, the trace records it.

`RULES` names the rules of the design that a move implements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fsm.errors import EvenstepError
from fsm.events import FailureKind
from fsm.state import GroupClass

Picks = tuple[tuple[GroupClass, int], ...]
"""Classes, and how many groups of each."""


class PromptsHeldBack(NamedTuple):
    """Prompts diverted from the data into the pool."""

    groups: int
    first_prompt: int
    """Of those that are not generated again (C3)."""


class BatchAdmitted(NamedTuple):
    """A batch admitted from the data, or from the pool (P2)."""

    groups: int
    target_step: int
    bucket: int
    first_prompt: int
    """Of those that are not generated again (C3); NONE for spares."""
    from_spares: bool


class GateMoved(NamedTuple):
    """The gate opened or closed."""

    open: bool


class QueueDispatched(NamedTuple):
    """The first groups of the queue start their first attempt."""

    group_class: GroupClass
    groups: int


class WaitingStarted(NamedTuple):
    """All attempts that waited start, in the order in which they came to wait."""

    start_weight: int


class GroupCommitted(NamedTuple):
    """The event's group is ready."""

    before: GroupClass
    after: GroupClass


class RetryWaits(NamedTuple):
    """The event's group backs off, or waits to start again."""

    before: GroupClass
    after: GroupClass
    kind: FailureKind
    backs_off: bool


class BackoffEnded(NamedTuple):
    """The event's group waits to start."""

    group_class: GroupClass


class GroupFiltered(NamedTuple):
    """The event's group was dropped by dynamic sampling."""

    group_class: GroupClass


class GroupDropped(NamedTuple):
    """The event's group was given up on."""

    group_class: GroupClass
    kind: FailureKind


class GroupReplaced(NamedTuple):
    """A spare takes over the slot of the event's group."""

    group_class: GroupClass
    """Of the spare."""


class GroupLost(NamedTuple):
    """The event's group is gone for good."""

    charged_step: int
    """The step that is charged, or NONE."""


class ClaimFailed(NamedTuple):
    """The event's group leaves the chunk in training."""

    group_class: GroupClass


class ChunkSelected(NamedTuple):
    """Ready groups taken into the step being trained."""

    step: int
    picks: Picks


class ChunkAccumulated(NamedTuple):
    """The chunk in training is trained."""

    step: int


class StepFinishing(NamedTuple):
    """The optimizer step is asked for."""

    step: int
    selected: int
    charged: int
    short: int
    """Groups that a step which closes short at exhaustion is missing; else 0."""


class StepClosed(NamedTuple):
    """The optimizer step is done: the groups are trained and the version has moved."""

    step: int
    selected: int
    charged: int
    short: int


class WeightsSynced(NamedTuple):
    """Every generation worker runs the version."""

    version: int


class GroupsEvicted(NamedTuple):
    """Ready groups removed, whole classes."""

    picks: Picks


class GroupsAborted(NamedTuple):
    """Running attempts stopped, whole classes."""

    picks: Picks


class SourceExhausted(NamedTuple):
    """Nothing can come any more."""


class RunResumed(NamedTuple):
    """A checkpoint was taken up: groups in flight start again, selected ones are ready again."""

    start_weight: int


class RunRegenerated(NamedTuple):
    """A checkpoint was taken up under another sampler, N or group size: what is not trained is generated again."""

    groups: int


class DataReplaced(NamedTuple):
    """A checkpoint was taken up with other data: what is not trained of the old data is dropped."""

    groups: int
    """Dropped, those that were to be generated again included."""


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
"""Per kind of move the rules that it carries out."""
