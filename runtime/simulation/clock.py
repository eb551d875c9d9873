"""An asyncio loop whose time is simulated: it never waits, and its clock jumps to the next timer."""

import asyncio
import math
import selectors
from selectors import SelectorKey


class NothingScheduled(Exception):
    """Every task waits, and no timer is set: nothing can ever happen again."""


class TimeIsUp(Exception):
    """The clock, or the number of turns of the loop, has passed its bound."""


class Halted(Exception):
    """`VirtualLoop.halt` was called."""


STILL_TURNS, CREEP_S = 100, 1e-9
"""After so many turns without time passing, so much of it passes each turn, as on any real clock: a task that sleeps
for the rest of an interval, which rounding makes too short to move the clock, would turn for ever."""


class _Jumps(selectors.SelectSelector):
    """A selector without files: where a real one waits, this one moves the clock."""

    def __init__(self, now_s: float) -> None:
        super().__init__()
        self.now_s = now_s
        self.until_s = math.inf
        self.turns_left = 0.0
        self.halted = False
        self._still = 0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if self.halted:
            raise Halted
        if timeout is None:
            raise NothingScheduled
        self.turns_left -= 1
        if self.now_s + timeout > self.until_s or self.turns_left < 0:
            raise TimeIsUp
        self._still = 0 if timeout > 0.0 else self._still + 1
        self.now_s += timeout
        if self._still >= STILL_TURNS:
            self.now_s = max(self.now_s + CREEP_S, math.nextafter(self.now_s, math.inf))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """One owner, no threads, no files. `time` starts at `now_s` seconds.

    `run_until_complete` raises NothingScheduled or TimeIsUp where the work cannot end, or takes too long, and Halted.
    """

    def __init__(self, now_s: float, turns_max: int) -> None:
        self._jumps = _Jumps(now_s)
        super().__init__(self._jumps)
        self._jumps.turns_left = turns_max

    def time(self) -> float:
        return self._jumps.now_s

    def end_at(self, until_s: float) -> None:
        """TimeIsUp is raised when the clock would pass this time."""
        self._jumps.until_s = until_s

    def halt(self) -> None:
        """End the work after this turn."""
        self._jumps.halted = True

    def no_bounds(self) -> None:
        """Neither TimeIsUp nor Halted is raised any more."""
        self._jumps.until_s = self._jumps.turns_left = math.inf
        self._jumps.halted = False
