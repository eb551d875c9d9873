"""The clock pump.

Consumes: StartBackoff; the time; the core's word that it can never go on.
Waits for: the end of a backoff; the watchdog's time (W2) is `runtime.control.watchdog`'s.
Unblocked by: timers.
Produces: BackoffOver, StallTimeout and DeadEndReached.
"""

from __future__ import annotations

from functools import partial

from fsm.config.parse import StallWatchdogConfig
from fsm.effects import StartBackoff
from fsm.events import BackoffOver, DeadEndReached, StallTimeout
from runtime.control.event_loop import Control
from runtime.control.recorder import Recorder


class ClockPump:
    """Backoffs, and the watchdog. The deadlines of attempts (W1) are the generation pump's."""

    def __init__(self, control: Control, recorder: Recorder, watchdog: StallWatchdogConfig) -> None:
        self._control = control
        self._recorder = recorder
        self._watchdog = watchdog
        self._at_dead_end = False

    def start_backoff(self, backoff: StartBackoff) -> None:
        """See StartBackoff."""
        self._control.later(backoff.delay_s, partial(self._over, backoff))

    def dead_end(self) -> None:
        """Act at once, and once: what can never go on stays so (W2)."""
        if self._at_dead_end:
            return
        self._at_dead_end = True
        if self._watchdog.on_deadlock == "stop":
            self._control.later(0.0, self._stop)
        else:
            self._recorder.dead_end(self._control.core.explain_dead_end())

    def _stop(self) -> None:
        """In a turn of its own: whoever applied the last event is still at it."""
        self._control.apply(DeadEndReached())

    def stalled(self, idle_s: float) -> None:
        """The watchdog saw no progress (W2). A run at a dead end was told about."""
        if self._at_dead_end:
            return
        if self._watchdog.stall_action == "abort":
            self._control.apply(StallTimeout(idle_s))
        else:
            self._recorder.stalled(idle_s, self._control.core.waits_for())

    def _over(self, backoff: StartBackoff) -> None:
        self._control.apply(BackoffOver(backoff.attempt))
