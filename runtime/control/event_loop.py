"""Control: the one place where events go into the core and effects come out, and the tasks and timers of the pumps.

Everything here runs on one asyncio loop. Nothing polls: a task waits for a call to be answered, a timer for its time.
An error in a task or a timer ends the run with that error.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fsm.core import Core
from fsm.effects import Completed, Effect, Stopped
from fsm.errors import LateAnswer
from fsm.events import Begin, Event, GroupFinished, StepFinished
from fsm.machines.trainer import TrainerState


class Control:
    """The only caller of `Core.apply`. Pumps apply events through it; errors of their tasks and timers end the run."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.late_answers = 0
        """Answers that were refused because their attempt, or the run, was over (D2)."""
        self.core_s = 0.0
        """CPU seconds of `core.apply`, its observers included."""
        self.progress_s = 0.0
        """When a group last finished or a step closed, on the loop's clock (W2)."""
        self.interrupted = False
        """The run was asked to end early."""
        self._ended: asyncio.Future[None] | None = None
        """Done once the run is over; None until it begins."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._group: asyncio.TaskGroup | None = None
        self._carry_out: Callable[[Sequence[Effect]], None]
        self._dead_end: Callable[[], None]

    @property
    def over(self) -> bool:
        """The run is completed, stopped or interrupted."""
        return self._ended is None or self._ended.done()

    @property
    def _finishing(self) -> bool:
        return self.core.state.trainer.status is TrainerState.FINISHING

    async def run(self, carry_out: Callable[[Sequence[Effect]], None], dead_end: Callable[[], None]) -> None:
        """Begin, and return when the run is over. Raises the error of a task or a timer.

        `carry_out` gets the effects of each event (`runtime.control.pumps.effects`): it starts work, returns at once
        and applies no event. `dead_end` is called after each event once the core can never continue.
        """
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._carry_out, self._dead_end = carry_out, dead_end
        self.progress_s = loop.time()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self.apply(Begin())
                try:
                    await self._ended
                finally:
                    for timer in self._timers:
                        timer.cancel()
                    for task in self._tasks:
                        task.cancel()
        except ExceptionGroup as failures:
            raise _innermost(failures) from failures

    def progressed(self) -> None:
        """Work that the core doesn't know of has advanced: a part of a validation (W2)."""
        self.progress_s = asyncio.get_running_loop().time()

    def interrupt(self) -> None:
        """End the run early; the core is not told, so that a checkpoint of it can be resumed.

        An optimizer step under way is waited for: a checkpoint belongs between two steps.
        """
        self.interrupted = True
        if not self._finishing:
            self.end_now()

    def end_now(self) -> None:
        """End the run even within an optimizer step, whose trainer may not answer."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def apply(self, event: Event) -> bool:
        """Feed one event and have its effects carried out. False for one that came too late, or after the run."""
        if self.over:
            self.late_answers += 1
            return False
        started = time.thread_time()
        try:
            effects = self.core.apply(event)
        except LateAnswer:
            self.late_answers += 1
            return False
        finally:
            self.core_s += time.thread_time() - started
        if isinstance(event, GroupFinished | StepFinished):
            self.progressed()
        if any(isinstance(effect, Completed | Stopped) for effect in effects):
            self.end_now()
        self._carry_out(effects)
        if not self.core.can_go_on:
            self._dead_end()
        if self.interrupted and not self._finishing:
            self.end_now()
        return True

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task; its error ends the run. It is cancelled when the run is over."""
        assert self._group is not None, "spawn works while the run does"
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def later(self, delay_s: float, call: Callable[[], object]) -> None:
        """Make a call after a delay, unless the run is over by then; its error ends the run."""

        def fire() -> None:
            self._timers.discard(timer)
            if self.over:
                return
            try:
                call()
            except BaseException as error:
                if self._ended is not None and not self._ended.done():
                    self._ended.set_exception(error)

        timer = asyncio.get_running_loop().call_later(delay_s, fire)
        self._timers.add(timer)


def _innermost(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error itself if there is just one."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
