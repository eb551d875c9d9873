"""The end of a run in time for `checkpointing.max_wall_s`: after the last step that fits, or within a slow one."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fsm.errors import LimitReached

STEPS_REMEMBERED = 10
"""The next step is expected to take as long as the longest of so many."""
SAVES_AT_END = 3
"""A checkpoint that is being written when the run ends, the last one, and the model, which is no larger."""


class OutOfTime(LimitReached):
    """The run ended for `checkpointing.max_wall_s`. Of a run that had begun, everything is saved."""


@dataclass(slots=True)
class WallClock:
    """Calls `end` once, when the run must end."""

    limit_s: float | None
    """`checkpointing.max_wall_s`; None: the run may take any time."""
    began_s: float
    """When the command began, on `now_s`'s clock."""
    shutdown_s: float
    """`cluster.shutdown_timeout_s`."""
    longest_save_s: Callable[[], float]
    """The longest checkpoint so far, in seconds; 0 before the first."""
    end: Callable[[OutOfTime], None]
    now_s: Callable[[], float] = time.monotonic
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))
    """How long the last steps took, in seconds."""
    _step_began_s: float | None = None
    """When the step under way began; None before the end of the first."""
    _ended: bool = False

    @property
    def left_s(self) -> float:
        """Seconds until the end must begin."""
        assert self.limit_s is not None, "asked only of a run with a limit"
        reserved_s = self.shutdown_s + SAVES_AT_END * self.longest_save_s()
        return self.began_s + self.limit_s - reserved_s - self.now_s()

    async def watch(self) -> None:
        """End the run as soon as no time is left, whatever it does. Returns at once if there is no limit."""
        if self.limit_s is None:
            return
        while (left_s := self.left_s) > 0:
            await asyncio.sleep(max(left_s / 2, 0.1))  # half: a checkpoint may take longer than all before
        self._end("the end must begin now")

    def on_step_done(self) -> None:
        """End the run if another step does not fit: the next one would be cut off, and generated again."""
        now_s = self.now_s()
        if self._step_began_s is not None:
            self._steps.append(now_s - self._step_began_s)
        self._step_began_s = now_s
        if self.limit_s is None or not self._steps:
            return
        step_s, left_s = max(self._steps), self.left_s
        if step_s > left_s:
            self._end(f"a step takes up to {step_s:.1f} s, and its end must begin in {max(left_s, 0.0):.1f} s")

    def _end(self, why: str) -> None:
        if not self._ended:
            self._ended = True
            self.end(OutOfTime(f"checkpointing.max_wall_s = {self.limit_s:g} s is nearly over: {why}"))
