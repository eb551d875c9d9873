"""The clock pump.

Consumes: StartBackoff; the time; the core's word that it can never go on.
Waits for: the end of a backoff, and the moment at which the run would have made no progress for too long (W2).
Unblocked by: timers.
Produces: BackoffOver, StallTimeout and DeadEndReached.
"""

from __future__ import annotations

import asyncio
from functools import partial

from fsm.config import StallWatchdogConfig
from fsm.effects import StartBackoff
from fsm.events import BackoffOver, DeadEndReached, StallTimeout
from runtime.control import Control
from runtime.recorder import Recorder


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

    def watch(self) -> None:
        """Begin to watch; the run has just begun."""
        self._control.later(self._watchdog.stall_timeout_s, self._look)

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

    def _over(self, backoff: StartBackoff) -> None:
        self._control.apply(BackoffOver(backoff.attempt))

    def _look(self) -> None:
        """Come again when the time without progress could be up; act if it is. A run at a dead end was told about."""
        if self._at_dead_end:
            return
        idle_s = asyncio.get_running_loop().time() - self._control.progress_s
        left_s = self._watchdog.stall_timeout_s - idle_s
        if left_s > 0:
            self._control.later(left_s, self._look)
        elif self._watchdog.stall_action == "abort":
            self._control.apply(StallTimeout(idle_s))
        else:
            self._recorder.stalled(idle_s, self._control.core.waits_for())
            again_s = self._watchdog.interval_s or self._watchdog.stall_timeout_s
            self._control.later(again_s, self._look)
