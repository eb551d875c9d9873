"""What the core asks of the world. Plain data, to be carried out in the order given."""

from __future__ import annotations

from typing import NamedTuple

from fsm.errors import EvenstepError
from fsm.events import Attempt


class StartRollout(NamedTuple):
    """Generate a group. Answered by GroupFinished or GroupFailed with the same attempt."""

    attempt: Attempt
    slot: int
    """The slot that the group holds; retries and replacements keep it."""
    target_step: int | None
    start_weight: int
    """The version whose weights are synced now."""


class AbortRollout(NamedTuple):
    """Stop an attempt that runs. No answer is expected; one that comes is late."""

    attempt: Attempt


class StartBackoff(NamedTuple):
    """Answer with BackoffOver after `delay_s` seconds."""

    attempt: Attempt
    """The attempt that failed."""
    delay_s: float


class SelectedGroup(NamedTuple):
    """One group of a chunk."""

    prompt: int
    start_weight: int
    """The loss's importance-sampling correction is about this version, also under weight_fifo (D3)."""


class TrainChunk(NamedTuple):
    """Accumulate the gradients of these groups. Answered by ClaimUnreadable for some and ChunkTrained."""

    step: int
    chunk: int
    """Chunks of a run are numbered from 0."""
    groups: tuple[SelectedGroup, ...]


class FinishStep(NamedTuple):
    """Take the optimizer step over the groups that were selected. Answered by StepFinished."""

    step: int
    selected: int
    charged: int
    short: int


class SyncWeights(NamedTuple):
    """Publish the version's weights to all generation workers. Answered by SyncFinished."""

    version: int


class ClosedStep(NamedTuple):
    """A step is closed; for metrics and reports."""

    step: int
    selected: int
    charged: int
    short: int


class ClearRows(NamedTuple):
    """The data of these prompts' groups is not needed any more."""

    prompts: tuple[int, ...]
    why: str
    """trained, filtered, dropped or evicted; after a resume regenerated, or other data (C3)."""


class Completed(NamedTuple):
    """The run is over. Attempts that still run may be stopped."""


class Stopped(NamedTuple):
    """The run is over, with an error."""

    error: EvenstepError


Effect = (
    StartRollout
    | AbortRollout
    | StartBackoff
    | TrainChunk
    | FinishStep
    | SyncWeights
    | ClosedStep
    | ClearRows
    | Completed
    | Stopped
)
