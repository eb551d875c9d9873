"""Where sender and receivers meet, and what they tell each other there.

A TCPStore in the first trainer rank is the post office. Every process has a queue of its own in it, from which it takes
one letter after the other, waiting where there is none:

    worker to trainer   Join      here I am, give me the newest weights
                        Got       I have those of this round
                        Failed    this round went wrong for me; another Join follows
    trainer to worker   Invite    this is the round, its group and your rank in it
                        Refuse    there will be no round, and why

Every Join is answered by one Invite or one Refuse.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

Backend = Literal["gloo", "nccl"]

TRAINER_QUEUE = "to/trainer"
MANIFEST = "manifest"
"""The store's key for the manifest of the weights, which stays the same for the whole run."""


class WeightSyncFailed(RuntimeError):
    """Weights did not arrive, and trying again did not help or makes no sense."""


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """The address of the store."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Join:
    """A worker wants the newest weights."""

    seat: str
    """The worker's name, which a worker made anew takes over."""
    life: str
    """The one process; never used again."""


@dataclass(frozen=True, slots=True)
class Got:
    """A worker has the weights of a round."""

    life: str
    round: int


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A round went wrong for a worker."""

    life: str
    round: int
    error: str


@dataclass(frozen=True, slots=True)
class Invite:
    """A broadcast is about to begin."""

    round: int
    version: int
    group: int
    """The number of the process group; one that the worker belongs to already is used again."""
    rank: int
    members: tuple[str, ...]
    """Who takes part, by rank; the trainer is the first."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """There will be no broadcast."""

    error: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The sender ends. Its owner's letter."""


Letter = Join | Got | TransferFailed | Invite | Refuse | Stop
_KINDS: dict[str, type[Letter]] = {kind.__name__: kind for kind in (Join, Got, TransferFailed, Invite, Refuse, Stop)}


def queue_of(life: str) -> str:
    """The queue of one worker process."""
    return f"to/{life}"


def write(letter: Letter) -> str:
    """A letter as text."""
    return json.dumps({"kind": type(letter).__name__, **asdict(letter)})


def read(text: bytes) -> Letter:
    """The letter that `write` wrote."""
    fields = json.loads(text)
    kind = _KINDS[fields.pop("kind")]
    if kind is Invite:
        fields["members"] = tuple(fields["members"])
    return kind(**fields)
