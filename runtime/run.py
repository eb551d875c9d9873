"""A run from its settings to its summary, in the process that was asked for it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fsm.errors import ConfigError, EvenstepError
from fsm.setup import set_up
from fsm.state import Limits
from runtime.actors.reward_worker import pool_size, verdict_threads
from runtime.checkpoint import CheckpointRefused
from runtime.generation.config import VllmEngineConfig
from runtime.generation.errors import PolicyNotFinite, RequestRefused, UnsupportedModel
from runtime.generation.vllm_setup import VllmMissing, check_validation, check_vllm_installed
from runtime.memory import PeakMemory
from runtime.messages import Message, Notice, Outcome
from runtime.metric_writers import METRICS_FILE, MetricsBackendMissing, missing_backends
from runtime.model_directory import SMOLLM2 as SMOLLM2_SIZE
from runtime.model_directory import TINY as TINY_SIZE
from runtime.plot import plot_run
from runtime.preflight import Counted, needs_of, preflight
from runtime.ray_session import ray_session
from runtime.settings import SMOLLM2, TINY, Settings, TransferQueuePlaneConfig
from runtime.starting import CONFIG, MODEL, starting_in
from runtime.summary import Summary, make_summary
from runtime.tasks.config import JsonlTaskConfig, ReasoningGymTaskConfig
from runtime.tasks.errors import DataFailure, TaskError
from runtime.tasks.load import load_task
from runtime.tracing.on_signal import on_sigusr1
from runtime.transfer_queue.installed import TransferQueueMissing, check_transfer_queue_installed

if TYPE_CHECKING:
    from runtime.controller import RunPlan

Listener = Callable[[Message], None]

SELF_EXPLANATORY = (
    DataFailure, TaskError, CheckpointRefused, RequestRefused, UnsupportedModel, PolicyNotFinite, MetricsBackendMissing,
)  # fmt: skip
"""Errors of actors that say who is to blame and what to do; where they were raised helps nobody."""


class RunFailed(EvenstepError):
    """A run ended with an error that no rule foresees.

    The message is that of an error which says who is to blame and what to do, or else what the actor raised, and where.
    """


class InterruptedAtStart(EvenstepError):
    """The run was interrupted before it had begun: nothing was trained, and a checkpoint is as it was."""

    def __init__(self) -> None:
        super().__init__("interrupted before the run had begun: nothing was trained; it may be started again")


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run leaves."""

    outcome: Outcome
    summary: Summary
    places: dict[str, Path]
    """Where its files are."""

    def as_json(self) -> dict[str, Any]:
        """The summary, and what the controller says of its own cost and of what went wrong."""
        outcome = self.outcome
        return {
            **self.summary,
            "status": outcome.status,
            "error": outcome.error,
            "core_s": round(outcome.core_s, 3),
            "controller_cpu_s": round(outcome.controller_cpu_s, 3),
            "trace_cpu_s": round(outcome.trace_cpu_s, 3),
            "late_answers": outcome.late_answers,
            "worker_restarts": outcome.worker_restarts,
        }


def check_run(
    settings: Settings, output: Path, *, resume: bool, tell: Callable[[str], None] = lambda text: None
) -> tuple[int, int]:
    """Refuse what cannot run before any actor starts. Returns the numbers of training and held-out prompts.

    `tell` is told what a user should know, and what takes long. Raises ConfigError, which lists every problem.
    """
    name = settings.policy.model_name
    problems = preflight(
        data=settings.data,
        model={TINY: TINY_SIZE, SMOLLM2: SMOLLM2_SIZE}.get(name) or Path(name),
        output=output,
        resume=resume,
        needs=needs_of(settings),
        verdict_threads=_threads_of_a_process(settings),
        tell=tell,
    )
    if isinstance(settings.generation.engine, VllmEngineConfig):
        try:
            check_vllm_installed()
            check_validation(settings.generation, settings.validation.temperature)
        except (VllmMissing, RequestRefused) as refused:
            problems.append(str(refused))
    if isinstance(settings.data_plane, TransferQueuePlaneConfig):
        try:
            check_transfer_queue_installed()
        except TransferQueueMissing as missing:
            problems.append(str(missing))
    logger = settings.logger
    problems += missing_backends(
        tensorboard=logger.tensorboard, prometheus_port=logger.prometheus_port, wandb_project=logger.wandb_project
    )
    if problems:
        raise ConfigError("\n  - ".join(["the run cannot start:", *problems]))
    try:
        num_prompts = load_task(settings.data, "training").num_prompts
        held_out = load_task(settings.data, "validation").num_prompts if settings.data.validation_size else 0
    except TaskError as error:
        raise ConfigError(f"the run cannot start: {error}") from None
    _refuse_too_few(num_prompts, set_up(settings, num_prompts).limits)
    _say_deadlines(settings, tell)
    return num_prompts, held_out


def _say_deadlines(settings: Settings, tell: Callable[[str], None]) -> None:
    """An attempt that ends before its verdict's deadline never shows which line its verifier hangs in."""
    attempt_s = settings.async_rl.rollout_failure.rollout_timeout_s
    task = settings.data.task
    if attempt_s is None or not isinstance(task, JsonlTaskConfig | ReasoningGymTaskConfig):
        return
    if task.verdict_timeout_s >= attempt_s:
        tell(
            f"data.task.verdict_timeout_s is {task.verdict_timeout_s:g}, and an attempt as a whole has "
            f"async_rl.rollout_failure.rollout_timeout_s = {attempt_s:g} s: a verifier that hangs looks like any "
            "slow attempt; set the former below the latter, and the failure names its line"
        )


def _threads_of_a_process(settings: Settings) -> int:
    cluster = settings.cluster
    threads = verdict_threads(settings.data, cluster.reward_threads, cluster.reward_processes)
    return pool_size(threads, cluster.reward_processes).threads


def _refuse_too_few(num_prompts: int, limits: Limits) -> None:
    """Data that fills no step trains nothing (A5): better said before than after."""
    usable = num_prompts * limits.epochs if limits.uses_pool else num_prompts
    if not limits.closes_short and usable < limits.size:
        raise ConfigError(
            f"the run cannot start: the data has {num_prompts} prompts, fewer than grpo.num_prompts_per_step = "
            f"{limits.size}, so no step could be filled and nothing would be trained. Set num_prompts_per_step to "
            f"{max(num_prompts, 1)} or less, or give more data"
        )


def run_training(settings: Settings, output: Path, *, resume: bool, listener: Listener) -> RunResult:
    """Run to the end. `listener` is told what happens, in this thread.

    A KeyboardInterrupt ends the run early, with a checkpoint where they are enabled; a second one at once.
    Raises ConfigError, which leaves no directory behind, InterruptedAtStart, and what ended the run otherwise.
    """
    began_s = time.monotonic()
    listener(Notice("checking the data, the model and the machine"))
    num_prompts, held_out = check_run(settings, output, resume=resume, tell=lambda text: listener(Notice(text)))
    address = settings.cluster.address
    listener(Notice("starting Ray" if address is None else f"connecting to Ray at {address}"))
    with PeakMemory() as memory, ray_session(settings):
        outcome = run_on_ray(settings, output, num_prompts, held_out, resume, listener)
    places = {"metrics": output / METRICS_FILE}
    if outcome.trace is not None:
        places["trace"] = outcome.trace
    if outcome.checkpoint is not None:
        places["checkpoint"] = outcome.checkpoint
    if settings.logger.plot and outcome.closed:
        places["plot"] = plot_run(output / METRICS_FILE, output / "plot.png")
    summary = make_summary(
        accuracy_before=outcome.accuracy_before,
        accuracy_after=outcome.accuracy_after,
        closed=outcome.closed,
        balance=outcome.balance,
        wall_s=time.monotonic() - began_s,
        rl_s=outcome.rl_s,
        peak_memory_bytes=memory.peak_bytes,
        trace=outcome.trace,
        seed=settings.seed,
        config=settings.model_dump(mode="json"),
    )
    return RunResult(outcome, summary, places)


def run_on_ray(
    settings: Settings, output: Path, num_prompts: int, held_out: int, resume: bool, listener: Listener
) -> Outcome:
    """The run on the Ray session that is there. Raises as `run_training` does.

    Ray and what needs it are imported here, after the session has set its environment.
    """
    from runtime.actors.naming import Names, missing_resources
    from runtime.controller import RunPlan

    missing = "; ".join(missing_resources(settings))
    if missing and settings.cluster.address is None:
        raise ConfigError(
            f"the run cannot start: {missing}. Set cluster.trainer_device to cpu and generation to an engine on the "
            f"CPU, ask for fewer workers or ranks, or give cluster.address of a cluster that has them"
        )
    if missing:
        listener(Notice(f"waiting for the cluster to grow: {missing}"))
    names = Names(settings.cluster.run_name or time.strftime("run-%Y%m%d-%H%M%S"), settings.cluster.namespace)
    listener(Notice(f"run {names.run} in {output}; evenstep status --run {names.run} says where it stands"))
    listener(Notice(f"counting the prompts and preparing the model {settings.policy.model_name}"))
    with starting_in(output) as removed:
        if removed:
            listener(Notice(f"the last run that started in {output} never began: removed its {', '.join(removed)}"))
        model_directory = _prepare_model(settings, output / MODEL, listener)
        config = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)
        (output / CONFIG).write_text(config, encoding="utf-8")
        plan = RunPlan(settings, names, num_prompts, held_out, model_directory, output.resolve(), resume)
        with _sigterm_interrupts():
            return drive(plan, listener)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """What schedulers send before they kill ends a run as Ctrl-C does. Signals belong to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def drive(plan: RunPlan, listener: Listener) -> Outcome:
    """Start a controller on the Ray session that is there, and hear it out. See `run_training` for interrupts.

    Raises RunFailed.
    """
    import ray
    from ray.exceptions import RayError

    from runtime.actors.naming import start_actor
    from runtime.controller import Controller

    controller = start_actor(Controller, {**plan.names.options("controller"), "num_cpus": 0}, plan)
    stream: Any = controller.run.remote()
    interrupted = False
    dumping = on_sigusr1(lambda: ray.get(controller.dump_trace.remote()))
    try:
        while True:
            try:
                for reference in stream:
                    messages: Sequence[Message] = ray.get(reference)
                    for message in messages:
                        if isinstance(message, Outcome):
                            return message
                        listener(message)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                listener(Notice("interrupted: the run ends after what it is doing; interrupt again to end it at once"))
                if not ray.get(controller.interrupt.remote()):
                    raise InterruptedAtStart from None
    except RayError as error:
        raise _failed(error) from error
    finally:
        dumping.close()
        ray.kill(controller)


def _failed(error: BaseException) -> RunFailed:
    """What ended the run, out of the errors of the actors that it went through."""
    from ray.exceptions import RayTaskError

    cause = error
    while isinstance(cause, RayTaskError) and cause.cause is not None:
        cause = cause.cause
    return RunFailed(f"the run failed: {cause if isinstance(cause, SELF_EXPLANATORY) else error}")


def _prepare_model(settings: Settings, directory: Path, listener: Listener) -> Path:
    """In a process of its own, which ends with it: this one never imports torch. Raises as `run_training` does."""
    import ray
    from ray.exceptions import RayError

    def prepare(settings: Settings, directory: Path) -> tuple[Counted, Path | None]:
        from runtime.models.prepare import prepare

        return prepare(settings, directory)

    task: Any = ray.remote(num_cpus=1, max_calls=1)(prepare)
    try:
        counted, prepared = ray.get(task.remote(settings, directory.resolve()))
    except RayError as error:
        raise _failed(error) from error
    except KeyboardInterrupt:
        raise InterruptedAtStart from None
    for notice in counted.notices:
        listener(Notice(notice))
    if prepared is None:
        raise ConfigError("\n  - ".join(["the run cannot start:", *counted.refusals]))
    path: Path = prepared
    return path
