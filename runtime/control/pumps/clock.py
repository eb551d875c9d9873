"""The clock pump: backoffs, and the watchdog (W2). Deadlines of attempts (W1) are the generation pump's.

Consumes: StartBackoff; no progress for `stall_timeout_s`; the core's word that it can never continue.
Waits for: time to pass.
Unblocked by: timers.
Produces: BackoffOver, StallTimeout and DeadEndReached.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fsm.config.blocks import StallWatchdogConfig
from fsm.effects import StartBackoff
from fsm.events import BackoffOver, DeadEndReached, StallTimeout
from runtime.control.event_loop import Control
from runtime.control.run_recorder import RunRecorder


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


@dataclass(slots=True)
class ClockPump:
    """Turns time into events."""

    control: Control
    recorder: RunRecorder
    watchdog: StallWatchdogConfig
    at_dead_end: bool = False

    def start_backoff(self, backoff: StartBackoff) -> None:
        self.control.later(backoff.delay_s, lambda: self.control.apply(BackoffOver(backoff.attempt)))

    def dead_end(self) -> None:
        """Stop the run at once, or report the dead end; only the first call counts, since a dead end stays one (W2)."""
        if self.at_dead_end:
            return
        self.at_dead_end = True
        if self.watchdog.on_deadlock == "stop":
            # In another turn: the last event is still being applied.
            self.control.later(0.0, lambda: self.control.apply(DeadEndReached()))
        else:
            self.recorder.dead_end(self.control.core.explain_dead_end())

    def stalled(self, idle_s: float) -> None:
        """Stop the run, or report that it waits (W2). A dead end has been reported already."""
        if self.at_dead_end:
            return
        if self.watchdog.stall_action == "abort":
            self.control.apply(StallTimeout(idle_s))
        else:
            self.recorder.stalled(idle_s, self.control.core.waits_for())
