"""Phase 1 of a run: start its actors, open the core, and give every generation worker the weights."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.actor import ActorHandle

from fsm.config.refusals import NO_DEADLINE
from fsm.config.setup import Setup, set_up
from fsm.core import Core
from fsm.snapshot import Json, restore, snapshot
from fsm.state import Limits
from runtime.actors.fleet import Fleet
from runtime.actors.probing import ProbeTimes, keep_alive
from runtime.actors.reward_worker import RewardWorker, verdict_threads
from runtime.actors.trainer_group import TrainerGroup
from runtime.checkpoints.checkpoint import CHECKPOINTS, list_checkpoints
from runtime.control.collapse import CollapseWatch
from runtime.control.deadline import of_publishing, of_training
from runtime.control.event_loop import Control
from runtime.control.failures import InterruptedAtStart, failure_of
from runtime.control.messages import Listener, Notice, Outcome, RunPlan
from runtime.control.pumps.checkpoints import CheckpointPump
from runtime.control.pumps.clock import ClockPump
from runtime.control.pumps.effects import Pumps
from runtime.control.pumps.generation import GenerationPump
from runtime.control.pumps.not_applied import StepsNotApplied
from runtime.control.pumps.rows import Rows
from runtime.control.pumps.sync import SyncPump
from runtime.control.pumps.training import TrainingPump
from runtime.control.run_recorder import RunRecorder, death_of_worker
from runtime.files import FileNotWritten, writing
from runtime.generation.config import VllmEngineConfig
from runtime.metrics.accumulator import StepMeter
from runtime.metrics.writers import MetricsWriter, close_writers, open_writers
from runtime.naming import PROBE, PROBED, start_actor
from runtime.output.directory import begun_in, write_config, write_run_id
from runtime.output.restart_file import restart_said
from runtime.output.shared_output import SharedOutput
from runtime.samples.book import SampleBook
from runtime.settings import ObjectStorePlaneConfig, Settings
from runtime.tasks.config import CustomTaskConfig, ReasoningGymTaskConfig
from runtime.tasks.rewards import RatedByFunctions
from runtime.trace.files import make_header, next_incarnation, trace_path
from runtime.trace.writer import Trace
from runtime.transport.data_plane import DataPlane, open_data_plane
from runtime.wording import counted


@dataclass(slots=True)
class BegunRun:
    """A run that has begun: its parts, and what is known of it so far."""

    control: Control
    pumps: Pumps
    trainer: TrainerGroup
    recorder: RunRecorder
    outcome: Outcome
    resumed_from: Path | None
    ran: bool = False
    """The core has begun. Before that, a restored core differs from its snapshot: a checkpoint of it would be wrong."""
    before_stop: Json | None = None
    """The core's snapshot before the event that stopped it; None where no event did."""


async def begin(
    plan: RunPlan, shared: SharedOutput, closing: AsyncExitStack, tell: Listener, progressed: Callable[[], None]
) -> BegunRun:
    """Start all actors, load the weights everywhere, and remove the directory's mark: from then on the run has begun.

    Actors and files are closed with `closing`, in reverse order. Calls `progressed` after each long part (W2).
    """
    settings, resume = plan.settings, plan.start.resume
    shared.look("the controller")
    setup = set_up(settings, plan.start.num_prompts)
    plane, trainer, fleet, helpers = _make_actors(plan, closing)
    cluster = settings.cluster
    tell(
        Notice(
            f"loading the model (trainer ranks: {cluster.num_trainer_ranks}, generation workers: "
            f"{cluster.num_generation_workers}, engine: {settings.generation.engine.name})"
        )
    )
    fleet.on_death = lambda worker, reason: tell(death_of_worker(worker, reason))
    fleet.start()
    await trainer.look(shared)
    await trainer.open()
    progressed()
    resumed = () if resume is None else await trainer.resume(resume.checkpoint)
    progressed()
    core, recorder, trace = _open_core(plan, setup, closing, tell)
    fleet.on_start, fleet.on_death = recorder.worker_started, recorder.worker_lost
    fleet.on_quarantine = recorder.worker_quarantined
    _keep_alive(helpers, plan, recorder, closing)
    if resume is not None:
        tell(Notice(f"resuming from {resume.checkpoint}, after {counted(core.state.trainer.version, 'step')}"))
    await fleet.load(await trainer.publish(core.state.trainer.version))
    progressed()
    control = Control(core)
    pumps = make_pumps(plan, control, trainer, fleet, Rows(plane), recorder)
    if resume is not None and list_checkpoints(pumps.checkpoints.folder)[:1] == [resume.checkpoint]:
        pumps.checkpoints.newest = plan.snapshot
    outcome = Outcome("completed", None, trace=trace)
    run = BegunRun(control, pumps, trainer, recorder, outcome, None if resume is None else resume.checkpoint)

    def before_stop() -> None:
        run.before_stop = snapshot(core)

    core.before_stop = before_stop
    for prompt, row in resumed:
        pumps.rows.keep(prompt, row)
    write_config(plan.output, settings)
    write_run_id(plan.output, plan.start.origin.run)
    begun_in(plan.output)
    return run


class Helper(NamedTuple):
    """An actor without a state that the run needs: Ray restarts it if it ends."""

    name: str
    what: str
    """One of RESTARTED."""
    actor: ActorHandle[Any]


def _make_actors(plan: RunPlan, closing: AsyncExitStack) -> tuple[DataPlane, TrainerGroup, Fleet, list[Helper]]:
    """The data plane, trainer ranks, the fleet, which is not started yet, and reward workers and group store."""
    settings = plan.settings
    plane, plane_actors = open_data_plane(settings.data_plane, plan.names)
    for actor in plane_actors:
        closing.callback(ray.kill, actor)
    rewards = _start_reward_workers(plan)
    closing.push_async_callback(_close_reward_workers, rewards, plan.closing_s)
    trainer = TrainerGroup(settings, plan.names, plan.model_directory, plane, plan.start.origin)
    closing.callback(trainer.close)
    first, start = (plan.snapshot or {}).get("first_prompt", 0), plan.start
    fleet = Fleet(settings, plan.names, plan.model_directory, plane, rewards, start.held_out, first, start.began_with)
    closing.push_async_callback(fleet.close, plan.closing_s)
    helpers = [Helper(f"reward worker {number}", "reward", actor) for number, actor in enumerate(rewards)]
    if isinstance(settings.data_plane, ObjectStorePlaneConfig):
        helpers += [Helper("the group store", "store", actor) for actor in plane_actors]
    return plane, trainer, fleet, helpers


def _keep_alive(helpers: Sequence[Helper], plan: RunPlan, recorder: RunRecorder, closing: AsyncExitStack) -> None:
    """Probe them until the run is closed: one that does not answer is killed, and Ray restarts it."""
    cluster = plan.settings.cluster
    times = ProbeTimes(cluster.probe_interval_s, cluster.probe_timeout_s)
    for name, what, actor in helpers:
        ping: Any = actor.ping.options(concurrency_group=PROBE) if what == "reward" else actor.ping
        kill = partial(ray.kill, actor, no_restart=False)
        probing = asyncio.create_task(
            keep_alive(ping.remote, kill, times, partial(recorder.actor_restarted, name, what)),
            name=f"probes of {name}",
        )
        closing.callback(probing.cancel)


def _start_reward_workers(plan: RunPlan) -> list[ActorHandle[Any]]:
    """As many as configured. Ray restarts one that dies, which has no state."""
    data, cluster = plan.settings.data, plan.settings.cluster
    threads = verdict_threads(data, cluster.reward_threads, cluster.reward_processes)
    began_with, memory_mib = plan.start.began_with, cluster.reward_memory_mib
    arguments = (data, threads, cluster.reward_processes, began_with, plan.settings.sets, memory_mib)
    return [
        start_actor(
            RewardWorker,
            {**plan.names.options(f"reward-{number}"), **PROBED, "num_cpus": 0, "max_restarts": -1},
            *arguments,
        )
        for number in range(cluster.num_reward_workers)
    ]


async def _close_reward_workers(workers: Sequence[ActorHandle[Any]], timeout_s: float) -> None:
    """End them, within `timeout_s` seconds: a kill would end their verifiers too, but not what those have started."""
    closing: list[asyncio.Future[None]] = [asyncio.ensure_future(worker.close.remote()) for worker in workers]
    closed, _ = await asyncio.wait(closing, timeout=timeout_s)
    for call in closed:
        call.exception()  # one that is dead has nothing left to close
    for worker in workers:
        ray.kill(worker)


def _open_core(
    plan: RunPlan, setup: Setup, closing: AsyncExitStack, tell: Listener
) -> tuple[Core, RunRecorder, Path | None]:
    """The core, fresh or restored, its observers, and the path of its trace."""
    settings, saved = plan.settings, plan.snapshot
    writers = open_writers(
        plan.output,
        config=settings.model_dump(mode="json"),
        tensorboard=settings.logger.tensorboard,
        prometheus_port=settings.logger.prometheus_port,
        wandb_project=settings.logger.wandb_project,
        run_name=plan.names.run,
        samples=settings.samples.per_step != 0,
        table_every_steps=settings.samples.table_every_steps,
    )
    closing.callback(_close_writers, writers, tell)
    incarnation = next_incarnation(plan.output, -1 if saved is None else saved["incarnation"])
    header = make_header(
        settings,
        num_prompts=plan.start.num_prompts,
        seeds={"run": settings.seed, "data": settings.data.seed},
        snapshot=saved,
        incarnation=incarnation,
        restart=restart_said(plan.restarts, settings.cluster.max_run_restarts) if plan.restarts else None,
    )
    loop = asyncio.get_running_loop()

    def trace_refused(error: FileNotWritten) -> None:
        """Called on the thread that writes the trace."""
        loop.call_soon_threadsafe(tell, Notice(str(error)))

    path = trace_path(plan.output, incarnation)
    with writing(path, "the run has not begun"):
        trace = closing.enter_context(Trace(path, header, settings.trace, trace_refused))
    fresh = 0 if incarnation else None  # a run that was restarted before its first checkpoint
    resumed_at = fresh if saved is None else saved["state"]["trainer"][1]
    samples = SampleBook(settings.samples.per_step, incarnation, resumed_at)
    collapse = CollapseWatch(settings.grpo.num_prompts_per_step, plan.output)
    recorder = RunRecorder(StepMeter(setup.limits, time.monotonic()), writers, trace, tell, samples, collapse)
    if saved is None:
        core = Core(setup, observer=recorder.observe)
        core.book.incarnation = incarnation
    else:
        core = restore(setup, saved, incarnation=incarnation, observer=recorder.observe)
    recorder.core, recorder.restart = core, header["restart"]

    def record_failure(_: object, error: BaseException | None, __: object) -> None:
        """An error that ends the run before it has an Outcome is in its trace too (W3)."""
        if isinstance(error, InterruptedAtStart):
            recorder.ended("interrupted", None, recorder.last_checkpoint, None)
        elif error is not None:
            recorder.ended("failed", failure_of(error).says, recorder.last_checkpoint, None)

    closing.push(record_failure)
    for notice in (*worth_telling(core.notices, settings), *data_ends_first(setup.limits)):
        tell(Notice(notice))
    return core, recorder, trace.path if settings.trace.enabled else None


def data_ends_first(limits: Limits) -> Iterator[str]:
    """That a run ends with its data, where its configuration asks for more steps."""
    steps = limits.epochs * limits.prompts_per_epoch // limits.size
    if steps < limits.max_steps:
        epochs = f"{counted(limits.epochs, 'epoch')} of {counted(limits.prompts_per_epoch, 'prompt')}"
        yield (
            f"the data ends first: {epochs} (grpo.max_num_epochs) for at most {counted(steps, 'step')} of "
            f"{limits.size}, and grpo.max_num_steps is {limits.max_steps}; for more raise grpo.max_num_epochs, or set "
            "it to null for no limit"
        )


def worth_telling(notices: Sequence[str], settings: Settings) -> Iterator[str]:
    """The core's notices, in which a missing deadline takes fewer words, and none where no attempt can hang.

    None can where everything is the package's own and on this machine.
    """
    foreign = isinstance(settings.data.task, RatedByFunctions | ReasoningGymTaskConfig | CustomTaskConfig)
    may_hang = (
        foreign or settings.cluster.address is not None or isinstance(settings.generation.engine, VllmEngineConfig)
    )
    for notice in notices:
        if not notice.startswith(NO_DEADLINE):
            yield notice
        elif may_hang:
            yield f"{NO_DEADLINE}: one that hangs keeps its slot; set several times what one takes"


def _close_writers(writers: list[MetricsWriter], tell: Listener) -> None:
    """Metrics that the disk refuses are reported, and cost the run nothing else."""
    try:
        close_writers(writers)
    except FileNotWritten as error:
        tell(Notice(str(error)))


def make_pumps(
    plan: RunPlan, control: Control, trainer: TrainerGroup, fleet: Fleet, rows: Rows, recorder: RunRecorder
) -> Pumps:
    """The pumps of a run, as its configuration says."""
    settings = plan.settings
    failure, watchdog = settings.async_rl.rollout_failure, settings.async_rl.stall_watchdog
    not_applied = StepsNotApplied(settings.optimizer.stop_after_steps_not_finite)
    folder, now_s = plan.output / CHECKPOINTS, asyncio.get_running_loop().time()
    checkpoints = CheckpointPump(control, trainer, rows, recorder, settings.checkpointing, folder, now_s, not_applied)
    cluster = settings.cluster
    checkpoints.copies = of_training(cluster.train_timeout_s)
    generation = GenerationPump(control, fleet, rows, recorder, failure.rollout_timeout_s)
    generation.on_expired = fleet.expired
    stop_after = settings.loss_fn.stop_after_steps_without_tokens
    train_s = cluster.train_timeout_s
    return Pumps(
        control=control,
        generation=generation,
        training=TrainingPump(
            control,
            trainer,
            rows,
            recorder,
            stop_after,
            not_applied,
            chunks=of_training(train_s),
            steps=of_training(train_s),
        ),
        sync=SyncPump(
            control,
            trainer,
            fleet,
            recorder,
            checkpoints,
            validations={each.name: each.every_steps for each in settings.sets},
            publishing=of_publishing(cluster.sync_timeout_s),
        ),
        checkpoints=checkpoints,
        clock=ClockPump(control, recorder, watchdog),
        rows=rows,
        recorder=recorder,
    )
