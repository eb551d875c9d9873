"""The messages between sender and receivers, and the queues they go through.

Every process has a queue in a TCPStore in the first trainer rank, and takes its letters from it:

    worker to trainer   Join            send me the newest weights
                        Got             I have the weights of this round
                        TransferFailed  this round failed for me; another Join follows
    trainer to worker   Invite          the next round, its group and your rank in it
                        Refuse          why no round follows

Every Join is answered by one Invite or one Refuse.
"""

import json
from dataclasses import asdict, dataclass
from typing import Literal

Backend = Literal["gloo", "nccl"]

TRAINER_QUEUE = "to/trainer"
MANIFEST = "manifest"
"""The store's key for the manifest of the weights, which is the same for the whole run."""


class WeightSyncFailed(RuntimeError):
    """Weights did not arrive, and retries failed or are pointless."""


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """The address of the store."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Join:
    """A worker wants the newest weights."""

    seat: str
    """The worker's name, which a restarted worker keeps."""
    life: str
    """Identifies the process; a restarted worker has another."""


@dataclass(frozen=True, slots=True)
class Got:
    """A worker has the weights of a round."""

    life: str
    round: int


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A round failed for a worker."""

    life: str
    round: int
    error: str


@dataclass(frozen=True, slots=True)
class Invite:
    """A broadcast follows."""

    round: int
    version: int
    group: int
    """The number of the process group; a worker that is in it already uses it again."""
    rank: int
    members: tuple[str, ...]
    """The names of the members, by rank; the trainer is the first."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """No broadcast follows."""

    error: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The sender ends; its owner sends this."""


Letter = Join | Got | TransferFailed | Invite | Refuse | Stop
_KINDS: dict[str, type[Letter]] = {kind.__name__: kind for kind in (Join, Got, TransferFailed, Invite, Refuse, Stop)}


def queue_of(life: str) -> str:
    """The queue of one worker process."""
    return f"to/{life}"


def write(letter: Letter) -> str:
    """A letter as JSON."""
    return json.dumps({"kind": type(letter).__name__, **asdict(letter)})


def read(text: bytes) -> Letter:
    """The inverse of `write`."""
    fields = json.loads(text)
    kind = _KINDS[fields.pop("kind")]
    if kind is Invite:
        fields["members"] = tuple(fields["members"])
    return kind(**fields)
