"""What the world tells the core, as plain data. `fsm.core.Core.apply` takes one event at a time."""

from enum import StrEnum
from typing import NamedTuple


class FailureKind(StrEnum):
    """Whose failure an attempt's was; each kind has its own budget (L7)."""

    INFRA = "infra"
    DATA = "data"


class GroupRecord(NamedTuple):
    """What is known of a group when it is ready. A custom sampler makes its label from this."""

    prompt: int
    """Its number in dataloader order."""
    completion_tokens: int
    """Sampled tokens of all its rollouts."""
    reward_mean: float
    reward_std: float


class Attempt(NamedTuple):
    """Names one attempt of one group. Answers carry it, so that the core tells a late one from a current one (D2)."""

    prompt: int
    """The prompt's number in dataloader order, from 0."""
    dispatch: int
    """The attempt's dispatch number; later attempts of any group have larger ones."""
    incarnation: int = 0
    """How many times the run was resumed before. An answer from an earlier process is late."""


class Begin(NamedTuple):
    """The run starts, or goes on from a checkpoint. The first event of every core."""


class GroupFinished(NamedTuple):
    """All rollouts of an attempt are generated and rated, and their data is stored."""

    attempt: Attempt
    zero_variance: bool
    """All rewards are equal. With dynamic sampling the group is then filtered (L1)."""
    record: GroupRecord | None = None
    """Needed where a custom sampler labels groups."""


class GroupFailed(NamedTuple):
    """An attempt failed. The budget of its kind decides whether another follows (L7)."""

    attempt: Attempt
    kind: FailureKind
    error: str
    """The original error. One that stops the run quotes it."""


class BackoffOver(NamedTuple):
    """The delay of a `StartBackoff` is over."""

    attempt: Attempt
    """The attempt that failed."""


class ChunkTrained(NamedTuple):
    """The trainer has accumulated the chunk's gradients."""

    chunk: int


class ClaimUnreadable(NamedTuple):
    """The data of a group of the chunk in training could not be read (S5)."""

    prompt: int
    error: str


class StepFinished(NamedTuple):
    """The optimizer step that FinishStep asked for is done."""

    step: int


class SyncFinished(NamedTuple):
    """Every generation worker runs the version."""

    version: int


class StallTimeout(NamedTuple):
    """The watchdog saw no progress for `stall_timeout_s`, and `stall_action` is abort (W2)."""

    idle_s: float


class DeadEndReached(NamedTuple):
    """The watchdog saw that the run can never go on (`Core.can_go_on`), and `on_deadlock` is stop (W2)."""


Event = (
    Begin
    | GroupFinished
    | GroupFailed
    | BackoffOver
    | ChunkTrained
    | ClaimUnreadable
    | StepFinished
    | SyncFinished
    | StallTimeout
    | DeadEndReached
)
