"""W2: the watchdog's clock, from the first actor of a run to its last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fsm.config.parse import StallWatchdogConfig


async def watch(config: StallWatchdogConfig, progress_s: Callable[[], float], stalled: Callable[[float], None]) -> None:
    """Call `stalled` with the seconds without progress, once they are `stall_timeout_s`; again every `interval_s`.

    `progress_s` tells when there last was progress, on the loop's clock. Never returns.
    """
    while True:
        idle_s = asyncio.get_running_loop().time() - progress_s()
        left_s = config.stall_timeout_s - idle_s
        if left_s > 0:
            await asyncio.sleep(left_s)
        else:
            stalled(idle_s)
            await asyncio.sleep(config.interval_s or config.stall_timeout_s)
