"""How long something usually takes in this run, and the deadline that follows from it. Pure: callers hold the clock."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

LAST = 64
"""Durations that are remembered."""


@dataclass(slots=True)
class UsualTime:
    """Durations of one kind of work.

    The deadline is `configured`, if that is set. Else it is `factor` times the median of the last durations, at least
    `floor_s`: a run whose chunks take ten minutes waits longer for a chunk than one whose chunks take a second. The
    first pieces of work of a run have no history, so `floor_s` must cover a slow model's.
    """

    floor_s: float
    factor: float
    configured: float | None = None
    last: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))

    def took(self, duration_s: float) -> None:
        """Remember a duration, in seconds."""
        self.last.append(duration_s)

    @property
    def median_s(self) -> float | None:
        """None before anything was measured."""
        return median(self.last) if self.last else None

    @property
    def deadline_s(self) -> float:
        """Seconds after which the work has failed."""
        if self.configured is not None:
            return self.configured
        return max(self.floor_s, self.factor * (self.median_s or 0.0))

    @property
    def said(self) -> str:
        """The deadline and its reason, as in "3,600 s, usual 12.5 s"."""
        usual = "" if self.median_s is None else f", usual {self.median_s:.1f} s"
        return f"{self.deadline_s:,.0f} s{usual}"
