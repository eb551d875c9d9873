"""What passes between the controller and the generation workers: orders one way, answers the other.

Plain, small and without tensors. The rollouts themselves go through the data plane; an answer has their `row`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsm.events import Attempt, FailureKind
from runtime.groups import GroupReceipt

Row = Any
"""Names one group's data in the data plane; opaque to the controller, which only hands it on."""


@dataclass(frozen=True, slots=True)
class Order:
    """Generate a group."""

    attempt: Attempt
    start_weight: int
    """The version whose weights were last synced (D2). A worker that was made anew meanwhile may run a later one."""


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """A group is generated and scored."""

    attempt: Attempt
    receipt: GroupReceipt
    row: Row | None
    """Where its data is; None where dynamic sampling filters it, and nobody will read it."""
    busy_s: float
    """Seconds that the worker's engine has generated since it was made."""
    notice: str | None = None
    """What a reward worker had to say meanwhile, which is of no attempt."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt failed."""

    attempt: Attempt
    kind: FailureKind
    error: str
    notice: str | None = None
    """As in Finished."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """An attempt was stopped because the controller asked for it."""

    attempt: Attempt


Answer = AttemptFinished | AttemptFailed | Aborted


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A group that the trainer could not read (S5)."""

    prompt: int
    error: str


@dataclass(frozen=True, slots=True)
class ChunkReport:
    """What became of a chunk."""

    unreadable: tuple[Unreadable, ...]
    read_s: float
    """Seconds that reading the groups took."""


class WorkerLost(Exception):
    """A generation worker died; what it was doing is lost."""

    def __init__(self, worker: str, reason: str, lost: Sequence[Attempt]):
        self.worker = worker
        self.lost = tuple(lost)
        """Attempts that it had and has not answered, in the order given to it. Of a death each is told once."""
        super().__init__(f"generation worker {worker} died: {reason}")
