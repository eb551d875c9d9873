"""The clock pump: backoffs, and the watchdog (W2). Deadlines of attempts (W1) are the generation pump's.

Consumes: StartBackoff; no progress for `stall_timeout_s`; the core's word that it can never continue.
Waits for: time to pass.
Unblocked by: timers.
Produces: BackoffOver, StallTimeout and DeadEndReached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fsm.config.blocks import StallWatchdogConfig
from fsm.effects import StartBackoff
from fsm.events import BackoffOver, DeadEndReached, StallTimeout
from runtime.control.event_loop import Control
from runtime.control.ports import Recorder


async def watch(config: StallWatchdogConfig, progress_s: Callable[[], float], stalled: Callable[[float], None]) -> None:
    """W2: call `stalled` with the seconds without progress, once they are `stall_timeout_s`; again every `interval_s`.

    It runs from the first actor of a run to its last, so the controller starts it; `stalled` is `ClockPump.stalled`
    only while the core runs. `progress_s` gives the time of the last progress, on the loop's clock. Never returns.
    """
    while True:
        idle_s = asyncio.get_running_loop().time() - progress_s()
        left_s = config.stall_timeout_s - idle_s
        if left_s > 0:
            await asyncio.sleep(left_s)
        else:
            stalled(idle_s)
            await asyncio.sleep(config.interval_s or config.stall_timeout_s)


class ClockPump:
    """Turns time into events."""

    def __init__(self, control: Control, recorder: Recorder, watchdog: StallWatchdogConfig) -> None:
        self._control = control
        self._recorder = recorder
        self._watchdog = watchdog
        self._at_dead_end = False

    def start_backoff(self, backoff: StartBackoff) -> None:
        """Let the core retry the attempt after its delay."""

        def over() -> None:
            self._control.apply(BackoffOver(backoff.attempt))

        self._control.later(backoff.delay_s, over)

    def dead_end(self) -> None:
        """Stop the run at once, or report the dead end; only the first call counts, since a dead end stays one (W2)."""
        if self._at_dead_end:
            return
        self._at_dead_end = True
        if self._watchdog.on_deadlock == "stop":
            self._control.later(0.0, self._stop)  # in another turn: the last event is still being applied
        else:
            self._recorder.dead_end(self._control.core.explain_dead_end())

    def _stop(self) -> None:
        self._control.apply(DeadEndReached())

    def stalled(self, idle_s: float) -> None:
        """Stop the run, or report that it waits (W2). A dead end has been reported already."""
        if self._at_dead_end:
            return
        if self._watchdog.stall_action == "abort":
            self._control.apply(StallTimeout(idle_s))
        else:
            self._recorder.stalled(idle_s, self._control.core.waits_for())
