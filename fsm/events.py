"""What the world tells the core. Plain data; `fsm.core.Core.apply` takes one at a time."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class FailureKind(StrEnum):
    """Whose failure an attempt's was; each kind has its own budget (L7)."""

    INFRA = "infra"
    DATA = "data"


class GroupRecord(NamedTuple):
    """What is known of a group when it is ready; a custom sampler's label is made from it."""

    prompt: int
    """Its number in dataloader order."""
    completion_tokens: int
    """Sampled tokens of all its rollouts."""
    reward_mean: float
    reward_std: float


class Attempt(NamedTuple):
    """Names one attempt of one group; answers carry it, so that a late one can be told from a current one (D2)."""

    prompt: int
    """The prompt's number in dataloader order, from 0."""
    dispatch: int
    """The attempt's dispatch number; later attempts of any group have larger ones."""
    incarnation: int = 0
    """How many times the run was resumed before; answers from a dead process are late."""


class Begin(NamedTuple):
    """The run starts, or goes on from a checkpoint. The first event of every core."""


class GroupFinished(NamedTuple):
    """An attempt's rollouts are all there and scored."""

    attempt: Attempt
    zero_variance: bool
    """All rewards are equal. With dynamic sampling the group is then filtered (L1)."""
    record: GroupRecord | None = None
    """Needed where a custom sampler labels groups."""


class GroupFailed(NamedTuple):
    """An attempt failed. Whether another follows is decided by the budget of its kind (L7)."""

    attempt: Attempt
    kind: FailureKind
    error: str
    """The original error, kept in the one that stops the run."""


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
    """The optimizer step that was asked for is done."""

    step: int


class SyncFinished(NamedTuple):
    """Every generation worker runs the version."""

    version: int


class StallTimeout(NamedTuple):
    """The watchdog saw no progress for `stall_timeout_s`, and `stall_action` is abort (W2)."""

    idle_s: float


class DeadEndReached(NamedTuple):
    """The watchdog saw that the run can never go on (`fsm.rules.outlook`), and `on_deadlock` is stop (W2)."""


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
