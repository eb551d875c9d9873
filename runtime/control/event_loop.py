"""Control: the core, the tasks of its pumps, and the one place where events go in and effects come out.

Everything here runs on one asyncio loop. Nothing polls: a pump's task waits for a call to answer, a timer for its
time. Whatever goes wrong in a task or a timer ends the run with that error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from fsm.core import Core
from fsm.effects import (
    AbortRollout,
    ClearRows,
    Completed,
    Effect,
    FinishStep,
    StartBackoff,
    StartRollout,
    StepClosed,
    Stopped,
    SyncWeights,
    TrainChunk,
)
from fsm.errors import InvariantBroken, LateAnswer
from fsm.events import Begin, Event, GroupFinished, StepFinished
from fsm.machines.trainer import TrainerState


class Carrier(Protocol):
    """Carries out effects. Each method starts something and returns at once; none applies an event by itself."""

    def start_rollouts(self, starts: Sequence[StartRollout]) -> None:
        """Those of one event, together."""

    def abort_rollouts(self, aborts: Sequence[AbortRollout]) -> None:
        """Those of one event, together."""

    def start_backoff(self, backoff: StartBackoff) -> None:
        """See StartBackoff."""

    def train_chunk(self, chunk: TrainChunk) -> None:
        """See TrainChunk."""

    def finish_step(self, finish: FinishStep) -> None:
        """See FinishStep."""

    def sync_weights(self, sync: SyncWeights) -> None:
        """See SyncWeights."""

    def clear_rows(self, clear: ClearRows) -> None:
        """See ClearRows."""

    def step_closed(self, closed: StepClosed) -> None:
        """See StepClosed."""

    def dead_end(self) -> None:
        """The core can never go on (`Core.can_go_on`); told after every event from then on."""


class Control:
    """The only one who feeds the core.

    Pumps apply events and use its tasks and timers; what they raise ends the run.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.late_answers = 0
        """Answers that were refused since their attempt, or the run, was over (D2)."""
        self.core_s = 0.0
        """Seconds of computing in `core.apply`, its observers included."""
        self.events = 0
        self.progress_s = 0.0
        """When a group last finished or a step closed, on the loop's clock (W2)."""
        self._interrupted = False
        self._ended: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._group: asyncio.TaskGroup | None = None
        self._carrier: Carrier | None = None

    @property
    def over(self) -> bool:
        """The run is completed, stopped or interrupted."""
        return self._ended is None or self._ended.done()

    async def run(self, carrier: Carrier) -> None:
        """Begin, and return when the run is over. Raises what went wrong in a task or a timer."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._carrier = carrier
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
        """Something has got on that the core knows nothing of: a part of a validation (W2)."""
        self.progress_s = asyncio.get_running_loop().time()

    def interrupt(self) -> None:
        """End the run as it stands; the core is not told, so that a checkpoint of it can be resumed.

        An optimizer step under way is waited for: a checkpoint belongs between two.
        """
        self._interrupted = True
        if not self.over and not self._finishing:
            self._end()

    def end_now(self) -> None:
        """End it even within an optimizer step: whoever takes it does not answer."""
        if not self.over:
            self._end()

    @property
    def interrupted(self) -> bool:
        """The run was asked to end early."""
        return self._interrupted

    @property
    def _finishing(self) -> bool:
        return self.core.state.trainer.status is TrainerState.FINISHING

    def apply(self, event: Event) -> bool:
        """Feed one event and hand out its effects. False where it was refused as late, or the run is over."""
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
        self.events += 1
        if isinstance(event, GroupFinished | StepFinished):
            self.progress_s = asyncio.get_running_loop().time()
        self._hand_out(effects)
        if not self.core.can_go_on and self._carrier is not None:
            self._carrier.dead_end()
        if self._interrupted and not self._finishing:
            self._end()
        return True

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run something beside; what it raises ends the run. It is cancelled when the run is over."""
        assert self._group is not None, "spawn works while the run does"
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call something once time has passed; what it raises ends the run. It is not called once the run is over."""

        def fire() -> None:
            self._timers.discard(timer)
            if self.over:
                return
            try:
                call()
            except BaseException as error:
                self._fail(error)

        timer = asyncio.get_running_loop().call_later(delay_s, fire)
        self._timers.add(timer)
        return timer

    def forget(self, timer: asyncio.TimerHandle) -> None:
        """Cancel a timer of `later`."""
        timer.cancel()
        self._timers.discard(timer)

    def _hand_out(self, effects: Sequence[Effect]) -> None:
        """In the order given; rollouts to start or abort are gathered, since a worker takes them together."""
        carrier = self._carrier
        assert carrier is not None, "effects come while the run does"
        starts: list[StartRollout] = []
        aborts: list[AbortRollout] = []
        for effect in effects:
            match effect:
                case StartRollout():
                    starts.append(effect)
                case AbortRollout():
                    aborts.append(effect)
                case TrainChunk():
                    carrier.train_chunk(effect)
                case ClearRows():
                    carrier.clear_rows(effect)
                case FinishStep():
                    carrier.finish_step(effect)
                case StepClosed():
                    carrier.step_closed(effect)
                case SyncWeights():
                    carrier.sync_weights(effect)
                case StartBackoff():
                    carrier.start_backoff(effect)
                case Completed() | Stopped():
                    self._end()
                case _:
                    raise InvariantBroken(f"nobody carries out {effect}")
        if aborts:
            carrier.abort_rollouts(aborts)
        if starts and not self.over:
            carrier.start_rollouts(starts)

    def _end(self) -> None:
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, error: BaseException) -> None:
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_exception(error)


def _innermost(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error itself where there is just one."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
