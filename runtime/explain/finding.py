"""What a look at a situation finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunVerdict(StrEnum):
    """How a run stands."""

    DEADLOCKED = "deadlocked"
    """Nothing can ever happen."""
    LIVELOCKED = "livelocked"
    """Something can, but the step being trained can never close."""
    STARVED = "starved"
    """Everything is filtered."""
    STALLED = "stalled"
    """Something asked of the world does not answer."""
    SLOW = "slow"
    """What the step needs is in flight, at a usual age."""
    HEALTHY = "healthy"
    COMPLETED = "completed"
    """The run is over, as are the next three (W3)."""
    STOPPED = "stopped"
    """By a limit of its configuration."""
    FAILED = "failed"
    """By an exception or a dead process."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict, or the cause within one."""

    verdict: RunVerdict
    chain: tuple[str, ...]
    """What waits for what; the last is the root."""
    advice: str
    """What to change."""
    proof: tuple[str, ...] = ()
    """Of deadlocks and livelocks: the counts that make every answer impossible."""
    before: RunVerdict | None = None
    """How a run that is over stood before, where something was wrong with it."""
