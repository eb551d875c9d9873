"""How often workers may be restarted, and how long a seat waits before the next one. Pure: callers hold the clock."""

from collections import deque

FIRST_DELAY_S, LONGEST_DELAY_S = 5.0, 600.0
"""Before the third worker of a seat in a row that finished no group, doubled for each further one; and at most."""


class Restarts:
    """Counts restarts within a sliding window: a run of weeks must not end with its seventeenth preempted worker."""

    def __init__(self, allowed: int, window_s: float | None) -> None:
        """window_s: None counts those of the whole run."""
        self.allowed = allowed
        self.window_s = window_s
        self._at_s: deque[float] = deque()

    def count(self, now_s: float) -> bool:
        """Count one; False if it is one too many."""
        self._at_s.append(now_s)
        while self.window_s is not None and self._at_s[0] <= now_s - self.window_s:
            self._at_s.popleft()
        return len(self._at_s) <= self.allowed

    def __str__(self) -> str:
        within = "in this run" if self.window_s is None else f"within {self.window_s:g} s (cluster.restart_window_s)"
        return f"{len(self._at_s)} times {within}"


def delay_s(in_a_row: int) -> float:
    """Seconds before a seat's next worker, after so many in a row that finished no group: the first two come at once.

    So one bad node takes few of the restarts that all seats share.
    """
    return 0.0 if in_a_row < 2 else min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (in_a_row - 2))
