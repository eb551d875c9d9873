"""What is usual: the distribution of how long the last ones took, and the age from which one is taken to hang."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple

LEAST_S = 30.0
"""Nothing younger is ever taken to hang."""
MEDIANS = 10
LONGEST = 3


class Usual(NamedTuple):
    """How long the last ones took, in seconds."""

    median_s: float
    p99_s: float
    """Of fewer than a hundred, the longest."""
    of: int

    @property
    def limit_s(self) -> float:
        """What is older hangs: ten times the median, three times the 99th percentile, and at least 30 s."""
        return max(MEDIANS * self.median_s, LONGEST * self.p99_s, LEAST_S)

    def __str__(self) -> str:
        return f"usual are {seconds(self.median_s)}, at most {seconds(self.p99_s)} of the last {self.of}"


def usual_of(durations_s: Iterable[float]) -> Usual | None:
    """What is usual; None where none is known."""
    known = sorted(durations_s)
    if not known:
        return None
    return Usual(statistics.median(known), known[-(-99 * len(known) // 100) - 1], len(known))


def limit_s(usual: Usual | None, otherwise_s: float) -> float:
    """The age from which something hangs; `otherwise_s` where nothing is known of its like."""
    return max(otherwise_s, LEAST_S) if usual is None else usual.limit_s


def seconds(age_s: float) -> str:
    """A time for people: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if age_s < 10:
        return f"{age_s:.1f} s"
    if age_s < 120:
        return f"{age_s:.0f} s"
    minutes, rest = divmod(round(age_s), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"
