"""The controller: an asyncio actor that owns the core of a run and makes all the other actors.

It imports no torch, and sees references and counts where others see groups and weights. A run has four phases: its
actors start, the held-out accuracy is measured, the core runs, and the end saves what was trained and measures again.
The watchdog (W2) and an interrupt reach each of them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray

from fsm.config.setup import Setup, set_up
from fsm.core import Core
from fsm.errors import EvenstepError, Stalled
from fsm.snapshot import restore, snapshot
from runtime.actors.fleet import Fleet
from runtime.actors.reward_workers import close_reward_workers, start_reward_workers
from runtime.actors.trainer_group import TrainerGroup
from runtime.checkpoints.names import CHECKPOINTS
from runtime.checkpoints.origin import Origin
from runtime.checkpoints.resume import ResumePoint
from runtime.control.ending import End, Life, RunInterrupted, SavedAtEnd, ended_by, keep, outcome_of
from runtime.control.event_loop import Control
from runtime.control.failures import InterruptedAtStart, failure_of
from runtime.control.messages import Ending, Message, Notice, Outcome
from runtime.control.pumps.clock import ClockPump
from runtime.control.pumps.generation import GenerationPump
from runtime.control.pumps.pumps import Pumps
from runtime.control.pumps.rows import Rows
from runtime.control.pumps.sync import SyncPump
from runtime.control.pumps.training import TrainingPump
from runtime.control.run_recorder import RunRecorder
from runtime.control.saving import CLOSING_SHARE, STEP_SHARE
from runtime.control.watchdog import watch
from runtime.explain.live import Standing
from runtime.files.unwritten import FileNotWritten, writing
from runtime.metrics.accumulator import StepMeter
from runtime.metrics.writers import MetricsWriter, close_writers, open_writers
from runtime.naming import Names
from runtime.output.shared_output import SharedOutput
from runtime.output.starting import begun_in, write_config, write_run_id
from runtime.settings import Settings
from runtime.trace.files import make_header, next_incarnation, trace_path
from runtime.trace.writer import Trace
from runtime.transport.data_plane import open_data_plane

T = TypeVar("T")

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
    origin: Origin
    """Of its checkpoints."""
    resume: ResumePoint | None
    """Where it goes on from; None for a new run."""


class Controller:
    """One run. `run` is called once."""

    def __init__(self, plan: RunPlan, shared: SharedOutput) -> None:
        self._plan = plan
        self._shared = shared
        self._messages: list[Message] = []
        """To be told."""
        self._news = asyncio.Event()
        """There are messages, or the run is over."""
        self._life: Life | None = None
        """None until the run has begun."""
        self._phase: str | None = "its actors are being made"
        """What goes on apart from the core's run; None while the core runs."""
        self._progress_s = 0.0
        """When a phase last got on, on the loop's clock (W2)."""
        self._cut: asyncio.Future[EvenstepError] = asyncio.get_running_loop().create_future()
        """Set to end a phase early."""

    async def run(self) -> AsyncIterator[Sequence[Message]]:
        """The whole run; yields what happens, and the Outcome at the end.

        Raises what ended it before it had begun, InterruptedAtStart where that was an interrupt.
        """
        work = asyncio.create_task(self._run(), name="run")
        work.add_done_callback(lambda _: self._news.set())
        while not work.done():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), STANDING_INTERVAL_S)
            self._news.clear()
            told, self._messages = self._messages, []
            if self._life is not None:
                told.append(self._life.recorder.standing())
            if told:
                yield told
            await asyncio.wait([work], timeout=TELL_INTERVAL_S)
        if self._messages:
            yield self._messages
        yield [await work]

    async def interrupt(self) -> None:
        """End the run early, saving what it can; an optimizer step under way is waited for, within a bound."""
        began = self._life is not None
        self._cut_short(RunInterrupted("the run was interrupted") if began else InterruptedAtStart())
        if self._life is not None:
            control = self._life.control
            control.interrupt()
            patience_s = STEP_SHARE * self._plan.settings.cluster.shutdown_timeout_s
            asyncio.get_running_loop().call_later(patience_s, control.end_now)

    def _cut_short(self, error: EvenstepError) -> None:
        if not self._cut.done():
            self._cut.set_result(error)

    def _tell(self, message: Message) -> None:
        self._messages.append(message)
        self._news.set()

    async def dump_trace(self) -> Path | None:
        """Write the trace's memory to a file; None where the run has not begun."""
        return None if self._life is None else self._life.recorder.dump_trace()

    async def standing(self) -> Standing | None:
        """Where the run stands; None where it has not begun."""
        return None if self._life is None else self._life.recorder.standing()

    async def recent_trace(self) -> bytes | None:
        """A trace of the last records and of the state as of now; None where the run has not begun."""
        return None if self._life is None else self._life.recorder.recent_trace()

    async def waits_for(self) -> str:
        """What the run waits for, in one sentence."""
        return self._waits_for()

    def _waits_for(self) -> str:
        if self._life is not None and self._phase is None:
            return self._life.control.core.waits_for()
        return f"the run waits: {self._phase}"

    async def _run(self) -> Outcome:
        self._progress_s = asyncio.get_running_loop().time()
        watchdog = self._plan.settings.async_rl.stall_watchdog
        watching = asyncio.create_task(watch(watchdog, self._last_progress_s, self._stalled), name="watchdog")
        try:
            async with AsyncExitStack() as closing:
                life = self._life = await self._unless_cut(self._begin(closing))
                return await self._finish(life, await ended_by(self._live(life), life.control))
        finally:
            watching.cancel()

    def _last_progress_s(self) -> float:
        return self._progress_s if self._life is None else max(self._progress_s, self._life.control.progress_s)

    def _progressed(self) -> None:
        """A phase has got on."""
        self._progress_s = asyncio.get_running_loop().time()

    def _stalled(self, idle_s: float) -> None:
        """W2: in the core's run it is the core that stops; any other phase is cut short."""
        if self._life is not None and self._phase is None:
            self._life.pumps.clock.stalled(idle_s)
        elif self._plan.settings.async_rl.stall_watchdog.stall_action == "abort":
            self._cut_short(Stalled(f"no progress for {idle_s:.0f} s, stall_timeout_s is over: {self._waits_for()}"))
        else:
            self._tell(Notice(f"no progress for {idle_s:.0f} s: {self._waits_for()}"))

    async def _unless_cut(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a phase. Raises what it raises, and the error that cut it short."""
        if self._cut.done():
            work.close()
            raise self._cut.result()
        task = asyncio.create_task(work)
        both: list[asyncio.Future[Any]] = [task, self._cut]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait([task], timeout=CLOSING_SHARE * self._plan.settings.cluster.shutdown_timeout_s)
        raise self._cut.result()

    async def _begin(self, closing: AsyncExitStack) -> Life:
        """Make all actors, and give every generation worker the weights. From then on the run has begun."""
        plan, settings = self._plan, self._plan.settings
        self._shared.look("the controller")
        setup = set_up(settings, plan.num_prompts)
        plane, plane_actors = open_data_plane(settings.data_plane, plan.names)
        for actor in plane_actors:
            closing.callback(ray.kill, actor)
        rewards = start_reward_workers(settings, plan.names, plan.origin.prompts)
        closing_s = CLOSING_SHARE * settings.cluster.shutdown_timeout_s
        closing.push_async_callback(close_reward_workers, rewards, closing_s)
        trainer = TrainerGroup(settings, plan.names, plan.model_directory, plane, plan.origin)
        closing.callback(trainer.close)
        fleet = Fleet(
            settings,
            plan.names,
            plan.model_directory,
            plane,
            rewards,
            plan.validation_prompts,
            0 if plan.resume is None else plan.resume.control.get("first_prompt", 0),
            plan.origin.prompts,
        )
        cluster = settings.cluster
        closing.push_async_callback(fleet.close, closing_s)
        self._tell(
            Notice(
                f"loading the model (trainer ranks: {cluster.num_trainer_ranks}, generation workers: "
                f"{cluster.num_generation_workers}, engine: {settings.generation.engine.name})"
            )
        )
        fleet.start()
        await trainer.look(self._shared)
        await trainer.open()
        self._progressed()
        resumed = None if plan.resume is None else await trainer.resume(plan.resume.checkpoint)
        self._progressed()
        core, recorder, trace = self._open_core(setup, closing)
        fleet.on_start, fleet.on_death = recorder.worker_started, recorder.worker_lost
        if plan.resume is not None:
            self._tell(Notice(f"going on from {plan.resume.checkpoint}, after {core.state.trainer.version} steps"))
        await fleet.load(await trainer.publish(core.state.trainer.version))
        self._progressed()
        control = Control(core)
        pumps = self._make_pumps(control, trainer, fleet, Rows(plane), recorder)
        went_on_from = None if plan.resume is None else plan.resume.checkpoint
        life = Life(control, pumps, trainer, fleet, recorder, trace, went_on_from)

        def before_stop() -> None:
            life.before_stop = snapshot(core)

        core.before_stop = before_stop
        for prompt, row in resumed.rows if resumed else ():
            life.pumps.rows.keep(prompt, row)
        write_config(plan.output, settings)
        write_run_id(plan.output, plan.origin.run)
        begun_in(plan.output)
        return life

    def _make_pumps(
        self, control: Control, trainer: TrainerGroup, fleet: Fleet, rows: Rows, recorder: RunRecorder
    ) -> Pumps:
        plan, settings = self._plan, self._plan.settings
        failure, watchdog = settings.async_rl.rollout_failure, settings.async_rl.stall_watchdog
        checkpointing = settings.checkpointing
        return Pumps(
            generation=GenerationPump(control, fleet, rows, recorder, failure.rollout_timeout_s),
            training=TrainingPump(control, trainer, rows, recorder, settings.loss_fn.stop_after_steps_without_tokens),
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

    def _open_core(self, setup: Setup, closing: AsyncExitStack) -> tuple[Core, RunRecorder, Path | None]:
        """The core, fresh or restored, with everything that observes it, and where its trace is."""
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
        closing.callback(self._close, writers)
        control = None if plan.resume is None else plan.resume.control
        incarnation = 0 if control is None else next_incarnation(plan.output, control["incarnation"])
        header = make_header(
            settings,
            num_prompts=plan.num_prompts,
            seeds={"run": settings.seed, "data": settings.data.seed},
            snapshot=control,
            incarnation=incarnation,
        )
        loop = asyncio.get_running_loop()

        def trace_refused(error: FileNotWritten) -> None:
            """Told on the thread that writes the trace."""
            loop.call_soon_threadsafe(self._tell, Notice(str(error)))

        path = trace_path(plan.output, incarnation)
        with writing(path, "the run has not begun"):
            trace = closing.enter_context(Trace(path, header, settings.trace, trace_refused))
        recorder = RunRecorder(StepMeter(setup.limits, time.monotonic()), writers, trace, self._tell)
        if control is None:
            core = Core(setup, observer=recorder.observe)
        else:
            core = restore(setup, control, incarnation=incarnation, observer=recorder.observe)
        recorder.core = core

        def record_failure(_: object, error: BaseException | None, __: object) -> None:
            """What ends the run before it has an Outcome is in its trace too (W3)."""
            if isinstance(error, InterruptedAtStart):
                recorder.ended("interrupted", None, recorder.last_checkpoint, None)
            elif error is not None:
                recorder.ended("failed", failure_of(error).says, recorder.last_checkpoint, None)

        closing.push(record_failure)
        for notice in core.notices:
            self._tell(Notice(notice))
        return core, recorder, trace.path if settings.trace.enabled else None

    def _close(self, writers: list[MetricsWriter]) -> None:
        """Close the writers. Metrics that the disk refuses are told, and cost the run nothing else."""
        try:
            close_writers(writers)
        except FileNotWritten as error:
            self._tell(Notice(str(error)))

    async def _live(self, life: Life) -> None:
        """Validate, and run the core to its end."""
        version = life.control.core.state.trainer.version
        life.accuracy_before = await self._validate(life, "before", "the first validation", version)
        if self._cut.done():
            raise self._cut.result()
        self._phase, life.ran = None, True
        gc.freeze()  # what is there by now stays for the run, and going through it would stop the loop for 30 ms
        life.began_s, began_cpu_s = time.monotonic(), time.process_time()
        try:
            await life.control.run(life.pumps)
        finally:
            self._phase = "its end"
            self._progressed()
            life.rl_s = (life.recorder.last_close_s or time.monotonic()) - life.began_s
            life.controller_cpu_s = time.process_time() - began_cpu_s
            life.trace_cpu_s = life.recorder.trace_cpu_s

    async def _validate_again(self, life: Life) -> None:
        patience_s = CLOSING_SHARE * self._plan.settings.cluster.shutdown_timeout_s
        with suppress(TimeoutError):  # a worker that does not hear it has its share of the validation all the same
            await asyncio.wait_for(life.pumps.generation.stop(), patience_s)
        version = life.control.core.state.trainer.version
        life.accuracy_after = await self._validate(life, "after", "the final validation", version)

    async def _finish(self, life: Life, end: End) -> Outcome:
        """Save what was trained, measure it where the run completed, and say how it ended.

        Saving comes first: nothing that fails later may cost what was trained.
        """
        kept = SavedAtEnd(life.recorder.last_checkpoint)

        def saving() -> None:
            self._progressed()
            if end.status != "completed" or self._cut.done():
                self._tell(Ending(outcome_of(life, end, kept)))

        saving()
        life.recorder.finish()
        await keep(life, end, kept, self._plan.output, self._plan.settings, saving)
        if end.status == "completed":
            end = await ended_by(self._validate_again(life), life.control)
        if end.status == "completed" and kept.lost:
            end = End("failed", EvenstepError(kept.lost[0]))
        outcome = outcome_of(life, end, kept)
        life.recorder.ended(outcome.status, outcome.error, outcome.checkpoint, outcome.model)
        self._tell(Ending(outcome))
        return outcome

    async def _validate(self, life: Life, label: str, phase: str, step: int) -> float | None:
        if not self._plan.validation_prompts:
            return None
        self._phase = f"{phase} is under way"
        self._tell(Notice(f"measuring accuracy on {self._plan.validation_prompts} held-out prompts"))
        evaluation = await self._unless_cut(life.pumps.sync.measure(label, self._progressed))
        self._progressed()
        life.recorder.evaluated(step, evaluation)
        return evaluation.accuracy
