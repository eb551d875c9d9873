"""The clock pump.

Consumes: StartBackoff; the time.
Waits for: the end of a backoff; the watchdog's time (W2) is `runtime.watchdog`'s.
Unblocked by: timers.
Produces: BackoffOver and StallTimeout.
"""

from __future__ import annotations

from functools import partial

from fsm.config import StallWatchdogConfig
from fsm.effects import StartBackoff
from fsm.events import BackoffOver, StallTimeout
from runtime.control import Control
from runtime.recorder import Recorder


class ClockPump:
    """Backoffs, and the watchdog. The deadlines of attempts (W1) are the generation pump's."""

    def __init__(self, control: Control, recorder: Recorder, watchdog: StallWatchdogConfig) -> None:
        self._control = control
        self._recorder = recorder
        self._watchdog = watchdog

    def start_backoff(self, backoff: StartBackoff) -> None:
        """See StartBackoff."""
        self._control.later(backoff.delay_s, partial(self._over, backoff))

    def stalled(self, idle_s: float) -> None:
        """The watchdog saw no progress (W2)."""
        if self._watchdog.stall_action == "abort":
            self._control.apply(StallTimeout(idle_s))
        else:
            self._recorder.stalled(idle_s, self._control.core.waits_for())

    def _over(self, backoff: StartBackoff) -> None:
        self._control.apply(BackoffOver(backoff.attempt))
