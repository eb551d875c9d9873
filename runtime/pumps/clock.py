"""The clock pump.

Consumes: StartBackoff; the time.
Waits for: the end of a backoff, and the moment at which the run would have made no progress for too long (W2).
Unblocked by: timers.
Produces: BackoffOver and StallTimeout.
"""

from __future__ import annotations

import asyncio
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

    def watch(self) -> None:
        """Begin to watch; the run has just begun."""
        self._control.later(self._watchdog.stall_timeout_s, self._look)

    def _over(self, backoff: StartBackoff) -> None:
        self._control.apply(BackoffOver(backoff.attempt))

    def _look(self) -> None:
        """Come again when the time without progress could be up; act if it is."""
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
