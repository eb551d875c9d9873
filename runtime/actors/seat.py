"""The place of one generation worker, and the process that is on it."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ray.actor import ActorHandle
from ray.exceptions import RayTaskError

from fsm.events import Attempt


@dataclass(slots=True, eq=False)
class SeatedWorker:
    """One process on a seat, from its start to its end."""

    handle: ActorHandle[Any]
    numbers: Iterator[int] = field(default_factory=count)
    """Of its calls, in the order in which they are sent (`CallOrder`)."""
    version: int = -1
    """The version that it has confirmed."""
    proven: bool = False
    """It has generated tokens since it started, or need not: no worker of the seat has failed yet."""
    unanswered: dict[Attempt, None] = field(default_factory=dict)
    """Its attempts, in the order given to it."""
    failures: int = 0
    """The last attempts in a row that failed by its fault, as far as is known."""
    finished_before: int = 0
    """Groups that all workers had finished when the first of those failed."""
    condemned: str | None = None
    """Why it is quarantined: it is killed, whatever it still does."""


class Seat:
    """The place of one worker, which keeps its name when the worker is restarted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lives = 0
        """Workers started on this seat."""
        self.in_a_row = 0
        """The last of its workers that ended without having finished a group."""
        self.served = False
        """A worker of this seat has had the weights."""
        self.sending = asyncio.Lock()
        """Held while a caller waits for the worker and sends its call, so that no call overtakes an earlier one."""
        self.worker: asyncio.Task[SeatedWorker] | None = None
        """The worker, once it is open and has the current weights."""
        self.lost: dict[Attempt, None] = {}
        """Attempts of dead workers that no exchange has reported yet, in the order given to them."""
        self.last_death = ""

    @property
    def serving(self) -> SeatedWorker | None:
        """The worker, if it is open and runs the weights; None while one is being started."""
        worker = self.worker
        ready = worker is not None and worker.done() and not worker.cancelled() and worker.exception() is None
        return worker.result() if ready and worker is not None else None

    def take_lost(self) -> list[Attempt]:
        """The lost attempts, which only the first caller gets."""
        lost, self.lost = list(self.lost), {}
        return lost


def reason_of(error: Exception) -> str:
    """The error's own words, without the traceback that Ray adds on the way."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return str(cause) or type(cause).__name__
