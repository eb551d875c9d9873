"""What the core asks of the world, as plain data: a driver carries out the effects that `Core.apply` returns.

The effects of one event come in the order of the changes that led to them. A driver begins them in this order, and
need not wait for one to be done before it begins the next: what must be done first, an effect says under *before*.
Two kinds may be gathered and begun after the others of the same event: all AbortRollout, then all StartRollout.
Completed or Stopped is the last effect of a run.

No effect may apply an event while it is begun: its answer is a later event.
"""

from enum import StrEnum
from typing import NamedTuple

from fsm.errors import EvenstepError
from fsm.events import Attempt


class StartRollout(NamedTuple):
    """Generate the rollouts of a group and rate them.

    Before: nothing; the weights of `start_weight` are loaded everywhere, and none starts while weights are synced.
    After: store the group's data, then apply GroupFinished; or apply GroupFailed, at the latest at the deadline (W1).
    Both carry the same attempt.
    """

    attempt: Attempt
    slot: int
    """The slot that the group holds; retries and replacements keep it."""
    target_step: int | None
    start_weight: int
    """The version whose weights are synced now."""


class AbortRollout(NamedTuple):
    """Stop an attempt that runs, and drop what it has generated.

    Before: nothing. After: no event. An answer that was on its way is refused as late.
    """

    attempt: Attempt


class StartBackoff(NamedTuple):
    """Wait. Before: nothing. After `delay_s` seconds: apply BackoffOver with the same attempt."""

    attempt: Attempt
    """The attempt that failed."""
    delay_s: float


class SelectedGroup(NamedTuple):
    """One group of a chunk."""

    prompt: int
    start_weight: int
    """The version that the loss corrects for (importance sampling), also under weight_fifo (D3)."""


class TrainChunk(NamedTuple):
    """Accumulate the gradients of these groups.

    Before: nothing; the chunk before it was reported trained. After: apply ClaimUnreadable for each group whose data
    cannot be read, then ChunkTrained, even if no group is left. The data stays until ClearRows names the group.
    """

    step: int
    chunk: int
    """Chunks of a run are numbered from 0."""
    groups: tuple[SelectedGroup, ...]
    """In the order of selection (S3)."""


class FinishStep(NamedTuple):
    """Take the optimizer step over the gradients that were accumulated.

    Before: nothing; every chunk of the step was reported trained. After: apply StepFinished. A checkpoint is taken
    before the optimizer step or after StepFinished, never in between: snapshot and weights would disagree.
    """

    step: int
    selected: int
    charged: int
    short: int
    """Groups that are missing to N where the step closes short at exhaustion (X1); else 0."""


class SyncWeights(NamedTuple):
    """Publish the version's weights and have every generation worker load them.

    Before: a checkpoint of this version, if one is due, since the trainer is at rest. After: apply SyncFinished once
    the last worker has loaded. Attempts that run may go on; each keeps its start weight.
    """

    version: int


class StepClosed(NamedTuple):
    """A step is closed: record it in metrics and reports. The one effect that is a change too (`fsm.rules.changes`).

    Its groups are trained and the version has moved. Before: nothing. After: no event.
    """

    step: int
    selected: int
    charged: int
    short: int


class ClearReason(StrEnum):
    """Why the data of a group is not needed any more."""

    TRAINED = "trained"
    FILTERED = "filtered"
    DROPPED = "dropped"
    EVICTED = "evicted"
    REGENERATED = "regenerated"
    """After a resume: the prompt is generated again (C3)."""
    OTHER_DATA = "other data"
    """After a resume with other data, which the prompt is not of (C3)."""


class ClearRows(NamedTuple):
    """Delete the data of these prompts' groups; a group that has none is passed over.

    Before: a checkpoint that is being written has read it. After: no event. It may be put off, but not beyond the
    moment when the data of another attempt of the same prompt is stored.
    """

    prompts: tuple[int, ...]
    why: ClearReason


class Completed(NamedTuple):
    """End the run.

    Before: nothing; the weights of its last step are synced. After: no event; attempts that run may be stopped.
    """


class Stopped(NamedTuple):
    """End the run with an error. Before: nothing. After: no event; attempts that run may be stopped.

    A snapshot that is taken now would keep the end. `Core.before_stop` is the moment to take one to resume from.
    """

    error: EvenstepError


Effect = (
    StartRollout
    | AbortRollout
    | StartBackoff
    | TrainChunk
    | FinishStep
    | SyncWeights
    | StepClosed
    | ClearRows
    | Completed
    | Stopped
)
