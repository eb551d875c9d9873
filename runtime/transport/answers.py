"""Messages between the controller, the generation workers and the trainer: orders, answers, reports, publications.

Orders and answers are plain, small and without tensors. Rollouts go through the data plane; an answer has their `row`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsm.events import Attempt, FailureKind
from runtime.generation.engine import Weights
from runtime.groups import GroupReceipt

Row = Any
"""Names one group's data in the data plane. Opaque to the controller, which only passes it on."""


@dataclass(frozen=True, slots=True)
class Order:
    """Generate a group."""

    attempt: Attempt
    start_weight: int
    """The version whose weights were last synced (D2). A worker restarted meanwhile may run a later one."""


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """A group is generated and scored."""

    attempt: Attempt
    receipt: GroupReceipt
    row: Row | None
    """Where its data is; None if dynamic sampling filters it, so that nobody will read it."""
    busy_s: float
    """Seconds that the worker's engine has generated since it started."""
    notice: str | None = None
    """A reward worker's message, unrelated to the attempt."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt failed."""

    attempt: Attempt
    kind: FailureKind
    error: str
    notice: str | None = None
    of_worker: bool = False
    """Its worker or its node may be to blame: a streak of such failures quarantines it."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The controller stopped an attempt."""

    attempt: Attempt


Answer = AttemptFinished | AttemptFailed | Aborted


class RowsNotStored(Exception):
    """The data plane does not take groups. An infra failure of their attempts (L7)."""


class WorkerLost(Exception):
    """A generation worker died, and its unfinished attempts are lost."""

    def __init__(self, worker: str, reason: str, lost: Sequence[Attempt]):
        self.worker = worker
        self.lost = tuple(lost)
        """Its unanswered attempts, in the order they were given to it. Each is reported once."""
        super().__init__(f"generation worker {worker} died: {reason}")


@dataclass(frozen=True, slots=True)
class Publication:
    """A version's weights, as the trainer published them."""

    version: int
    payload: Any
    """The backend's own: the weights, or where to join their broadcast."""


@dataclass(frozen=True, slots=True)
class Published:
    """The controller's record of a Publication."""

    version: int
    publication: Any
    """A reference to it. The controller owns it and passes it on: a reference made elsewhere costs twice as much."""


class Fetched(NamedTuple):
    """The weights that a worker fetched."""

    weights: Weights
    """Valid until the next fetch."""
    version: int
    """The publication's version, or a later one that was published meanwhile, for a slow or restarted worker."""
