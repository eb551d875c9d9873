"""An event loop whose clock jumps to the next timer as soon as nothing else can run: hours pass in no time."""

import asyncio
import heapq
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code that waits for timers and for its own tasks alone."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1
        if not ready and timers:
            self._now_s = max(self._now_s, timers[0]._when)
        super()._run_once()


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
