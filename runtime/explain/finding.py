"""What `explain` finds: a verdict with its reasons; and how long things usually take."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class RunVerdict(StrEnum):
    """How a run is doing."""

    DEADLOCKED = "deadlocked"
    """No event can come any more."""
    LIVELOCKED = "livelocked"
    """Events can come, but the step being trained can never close."""
    STARVED = "starved"
    """Dynamic sampling filters nearly every group."""
    STALLED = "stalled"
    """The trainer, a sync or a rollout does not answer."""
    SLOW = "slow"
    """The rollouts that the step needs run, at a usual age."""
    HEALTHY = "healthy"
    COMPLETED = "completed"
    """The run is over, as are the next three (W3)."""
    STOPPED = "stopped"
    """By a limit of its configuration."""
    FAILED = "failed"
    """By an exception or a dead process."""
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Finding:
    """A verdict and its reasons."""

    verdict: RunVerdict
    waits_for: tuple[str, ...]
    """What waits for what; the last entry is the root."""
    advice: str
    """What to do."""
    proof: tuple[str, ...] = ()
    """Of a deadlock or livelock: the counts that rule out every event and every move."""
    before: RunVerdict | None = None
    """What was wrong before the run ended, if anything was."""


LEAST_S = 30.0
"""Nothing younger counts as hanging."""


class Usual(NamedTuple):
    """How long the last rollouts or calls took."""

    median_s: float
    p99_s: float
    """The longest, of fewer than a hundred."""
    of: int
    """How many are known."""

    @property
    def limit_s(self) -> float:
        """The age from which one hangs."""
        return max(10 * self.median_s, 3 * self.p99_s, LEAST_S)

    def __str__(self) -> str:
        return f"typically {seconds(self.median_s)} (p99 {seconds(self.p99_s)}, last {self.of})"


def usual_of(durations_s: Iterable[float]) -> Usual | None:
    """The distribution of some durations; None if there are none."""
    known = sorted(durations_s)
    if not known:
        return None
    return Usual(statistics.median(known), known[-(-99 * len(known) // 100) - 1], len(known))


def limit_s(usual: Usual | None, otherwise_s: float) -> float:
    """The age from which something hangs; `otherwise_s` if no usual time is known."""
    return max(otherwise_s, LEAST_S) if usual is None else usual.limit_s


def seconds(age_s: float) -> str:
    """A duration for people: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if age_s < 10:
        return f"{age_s:.1f} s"
    if age_s < 120:
        return f"{age_s:.0f} s"
    minutes, rest = divmod(round(age_s), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"
