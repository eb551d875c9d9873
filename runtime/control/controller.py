"""The controller: an asyncio actor that owns the core of a run and starts all the other actors.

It imports no torch: it has references and counts where others have groups and weights. `Controller._run` is the whole
run, in four phases:

1. `begin` (`runtime.control.starting`): actors start, and every generation worker loads the weights;
2. `_validate`: the held-out accuracy is measured;
3. `_run_core`: `Control` feeds the core its events, and the pumps carry out its effects (`runtime.control.pumps`);
4. `_finish` (`runtime.control.ending`): what was trained is saved, the accuracy measured again, and the Outcome sent.

The watchdog (W2) and an interrupt reach each of them: in phase 3 they stop the core, any other is cut short.
"""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from fsm.errors import EvenstepError, Stalled
from runtime.control.ending import End, RunInterrupted, ended_by, outcome_of, save_at_end, write_final_card
from runtime.control.failures import InterruptedAtStart
from runtime.control.held import keep_stacks
from runtime.control.messages import STEP_SHARE, ControllerRuns, Ending, Message, Notice, Outcome, RunPlan
from runtime.control.pumps.clock import watch
from runtime.control.starting import BegunRun, begin
from runtime.control.wall_clock import OutOfTime, WallClock
from runtime.evaluation.config import DEFAULT_SET
from runtime.explain.live import Standing
from runtime.output.shared_output import SharedOutput
from runtime.wording import counted

T = TypeVar("T")

STANDING_INTERVAL_S = 1.0
"""The longest time between two messages about where the run stands."""
TELL_INTERVAL_S = 0.5
"""Messages are gathered for so long: an item of a stream costs about as much as a call."""


class Controller:
    """One run. `run` is called once."""

    def __init__(self, plan: RunPlan, shared: SharedOutput) -> None:
        self._plan = plan
        self._shared = shared
        self._messages: list[Message] = []
        self._news = asyncio.Event()
        """There are messages, or the run is over."""
        self._begun: BegunRun | None = None
        self._phase: str | None = "its actors are being started"
        """The phase, for messages; None while the core runs."""
        self._progress_s = 0.0
        """When a phase last advanced, on the loop's clock (W2)."""
        self._cut: asyncio.Future[EvenstepError] = asyncio.get_running_loop().create_future()
        """Its result ends the current phase."""
        limit_s, shutdown_s = plan.settings.checkpointing.max_wall_s, plan.settings.cluster.shutdown_timeout_s
        self._wall_clock = WallClock(limit_s, plan.began_s, shutdown_s, self._longest_save_s, self._out_of_time)

    # What the process that started the run calls, and what others ask by the actor's name

    async def run(self) -> AsyncIterator[Sequence[Message]]:
        """The whole run; yields its messages, and the Outcome at the end.

        Raises the error that ended the run before it had begun; InterruptedAtStart for an interrupt.
        """
        yield [ControllerRuns(os.getpid(), keep_stacks())]
        work = asyncio.create_task(self._run(), name="run")
        work.add_done_callback(lambda _: self._news.set())
        while not work.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), STANDING_INTERVAL_S)
            self._news.clear()
            batch, self._messages = self._messages, []
            if self._begun is not None:
                batch.append(self._begun.recorder.standing())
            if batch:
                yield batch
            await asyncio.wait([work], timeout=TELL_INTERVAL_S)
        if self._messages:
            yield self._messages
        yield [await work]

    async def interrupt(self) -> None:
        """End the run early, and save what can be saved; an optimizer step under way is waited for, within a bound."""
        self._end_early(InterruptedAtStart() if self._begun is None else RunInterrupted("the run was interrupted"))

    async def dump_trace(self) -> Path | None:
        """Write the trace's memory to a file; None before the run has begun."""
        return None if self._begun is None else self._begun.recorder.dump_trace()

    async def standing(self) -> Standing | None:
        """Where the run stands; None before it has begun."""
        return None if self._begun is None else self._begun.recorder.standing()

    async def recent_trace(self) -> bytes | None:
        """A trace of the last records and of the state now; None before the run has begun."""
        return None if self._begun is None else self._begun.recorder.recent_trace()

    # The phases

    async def _run(self) -> Outcome:
        self._progressed()
        watchdog = self._plan.settings.async_rl.stall_watchdog
        watching = asyncio.create_task(watch(watchdog, self._last_progress_s, self._stalled), name="watchdog")
        timing = asyncio.create_task(self._wall_clock.watch(), name="wall clock")
        try:
            async with AsyncExitStack() as closing:
                begun = begin(self._plan, self._shared, closing, self._tell, self._progressed)
                run = self._begun = await self._unless_cut(begun)
                run.pumps.sync.on_step_done = self._wall_clock.on_step_done
                end = await ended_by(self._validate_and_run_core(run), run.control)
                return await self._finish(run, end)
        finally:
            watching.cancel()
            timing.cancel()

    async def _validate_and_run_core(self, run: BegunRun) -> None:
        await self._validate(run, "before", "the first validation")
        if self._cut.done():
            raise self._cut.result()
        await self._run_core(run)
        if run.control.interrupted and run.control.core.error is None:
            raise self._cut.result()  # why

    async def _validate(self, run: BegunRun, when: str, phase: str) -> None:
        """Measure every set under the core's version. `when`: before or after the run."""
        version = run.control.core.state.trainer.version
        for name, prompts in self._plan.start.held_out.items():
            self._phase = f"{phase} is under way"
            of_set = "" if name == DEFAULT_SET else f" of {name}"
            self._tell(Notice(f"measuring accuracy on {counted(prompts, 'held-out prompt')}{of_set}"))
            evaluation = await self._unless_cut(run.pumps.sync.measure(name, f"{name}-{when}", self._progressed))
            self._progressed()
            run.recorder.evaluated(version, name, evaluation)
            run.outcome.accuracy_by_set.setdefault(name, {})[when] = evaluation.accuracy

    async def _run_core(self, run: BegunRun) -> None:
        self._phase, run.ran = None, True
        gc.freeze()  # objects made so far stay for the run, and scanning them would stop the loop for 30 ms
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        try:
            await run.control.run(run.pumps.carry_out, run.pumps.clock.dead_end)
        finally:
            self._phase = "its end"
            self._progressed()
            run.outcome.rl_s = (run.recorder.last_close_s or time.monotonic()) - began_s
            run.outcome.controller_cpu_s = time.process_time() - began_cpu_s
            run.outcome.trace_cpu_s = run.recorder.trace_cpu_s

    async def _finish(self, run: BegunRun, end: End) -> Outcome:
        """Save what was trained first, so that no later failure costs it; measure it if the run completed."""
        run.outcome.checkpoint = run.recorder.last_checkpoint

        def saving() -> None:
            self._progressed()
            if end.status != "completed" or self._cut.done():
                self._tell(Ending(outcome_of(run, end)))

        saving()
        run.recorder.finish()
        await save_at_end(run, end, self._plan.output, self._plan.settings, saving)
        await write_final_card(run, self._plan)
        if end.status == "completed":
            end = await ended_by(self._validate_again(run), run.control)
            await write_final_card(run, self._plan)  # again, with the accuracy
        if end.status == "completed" and run.outcome.model is None:
            end = End("failed", EvenstepError(run.outcome.lost[-1]))
        outcome = outcome_of(run, end)
        run.recorder.ended(outcome.status, outcome.error, outcome.checkpoint, outcome.model)
        self._tell(Ending(outcome))
        return outcome

    async def _validate_again(self, run: BegunRun) -> None:
        with suppress(TimeoutError):  # a worker that does not hear it has its share of the validation anyway
            await asyncio.wait_for(run.pumps.generation.stop(), self._plan.closing_s)
        await self._validate(run, "after", "the final validation")

    # Messages, the watchdog, and cutting a phase short

    def _tell(self, message: Message) -> None:
        self._messages.append(message)
        self._news.set()

    def _progressed(self) -> None:
        self._progress_s = asyncio.get_running_loop().time()

    def _last_progress_s(self) -> float:
        return self._progress_s if self._begun is None else max(self._progress_s, self._begun.control.progress_s)

    def _waits_for(self) -> str:
        if self._begun is not None and self._phase is None:
            return self._begun.control.core.waits_for()
        return f"the run waits: {self._phase}"

    def _stalled(self, idle_s: float) -> None:
        """W2: in phase 3 the core stops; any other phase is cut short."""
        if self._begun is not None and self._phase is None:
            self._begun.pumps.clock.stalled(idle_s)
        elif self._plan.settings.async_rl.stall_watchdog.stall_action == "abort":
            self._cut_short(Stalled(f"no progress for {idle_s:.0f} s, stall_timeout_s is over: {self._waits_for()}"))
        else:
            self._tell(Notice(f"no progress for {idle_s:.0f} s: {self._waits_for()}"))

    def _longest_save_s(self) -> float:
        return 0.0 if self._begun is None else self._begun.pumps.checkpoints.longest_s

    def _out_of_time(self, error: OutOfTime) -> None:
        if self._begun is None:
            error = OutOfTime(f"{error}. The run had not begun, so nothing was trained; give it more time")
        self._end_early(error)

    def _end_early(self, error: EvenstepError) -> None:
        """End the run, or its phase; an optimizer step under way is waited for, within a bound."""
        self._cut_short(error)
        if self._begun is not None:
            self._begun.control.interrupt()
            patience_s = STEP_SHARE * self._plan.settings.cluster.shutdown_timeout_s
            asyncio.get_running_loop().call_later(patience_s, self._begun.control.end_now)

    def _cut_short(self, error: EvenstepError) -> None:
        if not self._cut.done():
            self._cut.set_result(error)

    async def _unless_cut(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a phase. Raises its error, or the error that cut it short."""
        if self._cut.done():
            work.close()
            raise self._cut.result()
        task = asyncio.create_task(work)
        both: list[asyncio.Future[Any]] = [task, self._cut]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait([task], timeout=self._plan.closing_s)
        raise self._cut.result()
