"""The controller: an asyncio actor that owns the core of a run and makes all the other actors.

It imports no torch, and sees references and counts where others see groups and weights.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import ray

from fsm.core import Core
from fsm.setup import Setup, set_up
from fsm.snapshot import restore
from fsm.state import is_over
from runtime.actors.fleet import Fleet
from runtime.actors.naming import Names
from runtime.actors.reward_workers import close_reward_workers, start_reward_workers
from runtime.actors.trainer_group import TrainerGroup
from runtime.actors.trainer_rank import Resumed
from runtime.checkpoint import CHECKPOINTS
from runtime.control import Control
from runtime.data_plane import open_data_plane
from runtime.explaining.live import Standing
from runtime.messages import Message, Notice, Outcome
from runtime.metric_writers import close_writers, open_writers
from runtime.metrics import StepMeter
from runtime.pumps.clock import ClockPump
from runtime.pumps.generation import GenerationPump
from runtime.pumps.pumps import Pumps
from runtime.pumps.rows import Rows
from runtime.pumps.sync import SyncPump
from runtime.pumps.training import TrainingPump
from runtime.run_recorder import RunRecorder
from runtime.settings import Settings
from runtime.starting import begun_in
from runtime.summary import balance_sheet, closed_steps
from runtime.tracing.header import make_header
from runtime.tracing.parts import trace_path
from runtime.tracing.writer import Trace

STANDING_INTERVAL_S = 1.0
"""Where the run stands is told at least so often."""
TELL_INTERVAL_S = 0.5
"""What happens meanwhile is told together: an item of a stream costs about as much as a call."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that a run is."""

    settings: Settings
    names: Names
    num_prompts: int
    """Of one epoch."""
    validation_prompts: int
    model_directory: Path
    output: Path
    resume: bool
    """Go on from the newest checkpoint in `output`."""


class Controller:
    """One run. `run` is called once."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._messages: list[Message] = []
        """To be told."""
        self._news = asyncio.Event()
        """There are messages, or the run is over."""
        self._control: Control | None = None
        self._work: asyncio.Task[Outcome] | None = None
        """The run from its first actor to its outcome."""
        self._recorder: RunRecorder | None = None

    async def run(self) -> AsyncIterator[Sequence[Message]]:
        """The whole run; yields what happens, and the Outcome at the end. Raises what ended it otherwise."""
        work = self._work = asyncio.create_task(self._run(), name="run")
        work.add_done_callback(lambda _: self._news.set())
        while not work.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), STANDING_INTERVAL_S)
            self._news.clear()
            told, self._messages = self._messages, []
            if self._recorder is not None:
                told.append(self._recorder.standing())
            if told:
                yield told
            await asyncio.wait([work], timeout=TELL_INTERVAL_S)
        if self._messages:
            yield self._messages
        yield [await work]

    async def interrupt(self) -> bool:
        """End the run early, with a checkpoint where they are enabled.

        False where it had not begun: what had been made is ended at once, and `run` has no Outcome.
        """
        if self._control is not None:
            self._control.interrupt()
            return True
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        return False

    def _tell(self, message: Message) -> None:
        self._messages.append(message)
        self._news.set()

    async def dump_trace(self) -> Path | None:
        """Write the trace's memory to a file; None where the run has not begun."""
        return None if self._recorder is None else self._recorder.dump_trace()

    async def standing(self) -> Standing | None:
        """Where the run stands; None where it has not begun."""
        return None if self._recorder is None else self._recorder.standing()

    async def recent_trace(self) -> bytes | None:
        """A trace of the last records and of the state as of now; None where the run has not begun."""
        return None if self._recorder is None else self._recorder.recent_trace()

    async def waits_for(self) -> str:
        """What the run waits for, in one sentence."""
        if self._control is None:
            return "the run has not begun: its actors are being made"
        return self._control.core.waits_for()

    async def _run(self) -> Outcome:
        plan, settings = self._plan, self._plan.settings
        setup = set_up(settings, plan.num_prompts)
        async with AsyncExitStack() as closing:
            plane, plane_actors = open_data_plane(settings.data_plane, plan.names)
            for actor in plane_actors:
                closing.callback(ray.kill, actor)
            rewards = start_reward_workers(settings, plan.names)
            closing.push_async_callback(close_reward_workers, rewards)
            trainer = TrainerGroup(settings, plan.names, plan.model_directory, plane)
            closing.callback(trainer.close)
            fleet = Fleet(settings, plan.names, plan.model_directory, plane, rewards, plan.validation_prompts)
            closing.push_async_callback(fleet.close)
            cluster = settings.cluster
            self._tell(
                Notice(
                    f"loading the model (trainer ranks: {cluster.num_trainer_ranks}, generation workers: "
                    f"{cluster.num_generation_workers}, engine: {settings.generation.engine.name})"
                )
            )
            fleet.start()
            await trainer.open()
            resumed = await trainer.resume(plan.output / CHECKPOINTS) if plan.resume else None

            core, recorder = self._open_core(setup, resumed, closing)
            fleet.on_start, fleet.on_death = recorder.worker_started, recorder.worker_lost
            self._recorder = recorder
            if resumed is not None:
                self._tell(Notice(f"going on from {resumed.path}, after {core.state.trainer.version} steps"))
            await fleet.load(await trainer.publish(core.state.trainer.version))

            control = Control(core)
            rows = Rows(plane)
            for prompt, row in resumed.rows if resumed else ():
                rows.keep(prompt, row)
            failure, watchdog = settings.async_rl.rollout_failure, settings.async_rl.stall_watchdog
            checkpointing = settings.checkpointing
            pumps = Pumps(
                generation=GenerationPump(control, fleet, rows, recorder, failure.rollout_timeout_s),
                training=TrainingPump(control, trainer, rows, recorder),
                sync=SyncPump(
                    control,
                    trainer,
                    fleet,
                    rows,
                    recorder,
                    validation_every=settings.validation.every_steps if plan.validation_prompts else None,
                    checkpoint_every=checkpointing.every_steps if checkpointing.enabled else None,
                    checkpoints=plan.output / CHECKPOINTS,
                    keep=checkpointing.keep,
                ),
                clock=ClockPump(control, recorder, watchdog),
                rows=rows,
                recorder=recorder,
            )
            return await self._drive(control, pumps, fleet, recorder)

    def _open_core(self, setup: Setup, resumed: Resumed | None, closing: AsyncExitStack) -> tuple[Core, RunRecorder]:
        """The core, fresh or restored, with everything that observes it."""
        plan, settings = self._plan, self._plan.settings
        config = settings.model_dump(mode="json")
        writers = open_writers(
            plan.output,
            config=config,
            tensorboard=settings.logger.tensorboard,
            prometheus_port=settings.logger.prometheus_port,
            wandb_project=settings.logger.wandb_project,
            run_name=plan.names.run,
        )
        closing.callback(close_writers, writers)
        incarnation = 0 if resumed is None else resumed.control["incarnation"] + 1
        header = make_header(
            settings,
            num_prompts=plan.num_prompts,
            seeds={"run": settings.seed, "data": settings.data.seed},
            snapshot=None if resumed is None else resumed.control,
            incarnation=incarnation,
        )
        trace = closing.enter_context(Trace(trace_path(plan.output, incarnation), header, settings.trace))
        self._trace = trace.path if settings.trace.enabled else None
        recorder = RunRecorder(StepMeter(setup.limits, time.monotonic()), writers, trace, self._tell)
        if resumed is None:
            core = Core(setup, observer=recorder.observe)
        else:
            core = restore(setup, resumed.control, observer=recorder.observe)
        recorder.core = core
        for notice in core.notices:
            self._tell(Notice(notice))
        return core, recorder

    async def _drive(self, control: Control, pumps: Pumps, fleet: Fleet, recorder: RunRecorder) -> Outcome:
        """Validate, run the core to its end, validate again."""
        plan, core = self._plan, control.core
        before = await self._validate(fleet, recorder, "before", core.state.trainer.version)
        self._control = control
        begun_in(plan.output)
        gc.freeze()  # what is there by now stays for the run, and going through it would stop the loop for 30 ms
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        pumps.clock.watch()
        await control.run(pumps)
        rl_s = (recorder.last_close_s or time.monotonic()) - began_s
        cpu_s = time.process_time() - began_cpu_s
        trace_cpu_s = recorder.trace_cpu_s
        recorder.finish()
        await pumps.generation.stop()
        interrupted = not is_over(core.state)
        if interrupted and plan.settings.checkpointing.enabled:
            await pumps.sync.checkpoint()
        after = None
        if not interrupted:
            after = await self._validate(fleet, recorder, "after", core.state.trainer.version)
        return Outcome(
            status="interrupted" if interrupted else core.state.run.status.name.lower(),
            error=None if core.error is None else str(core.error),
            accuracy_before=before,
            accuracy_after=after,
            closed=closed_steps(core),
            balance=balance_sheet(core),
            rl_s=rl_s,
            core_s=control.core_s,
            controller_cpu_s=cpu_s,
            trace_cpu_s=trace_cpu_s,
            late_answers=control.late_answers,
            worker_restarts=recorder.workers_lost,
            trace=self._trace,
            checkpoint=recorder.last_checkpoint,
        )

    async def _validate(self, fleet: Fleet, recorder: RunRecorder, label: str, step: int) -> float | None:
        if not self._plan.validation_prompts:
            return None
        self._tell(Notice(f"measuring accuracy on {self._plan.validation_prompts} held-out prompts"))
        evaluation = await fleet.evaluate(label)
        recorder.evaluated(step, evaluation)
        return evaluation.accuracy
