"""A run from its settings to its summary, in the process that a user starts.

`run_training` is the whole of it: `decide_start` refuses what cannot run, `run_on_ray` takes the output directory,
prepares the model and drives the controller, and `summary_of` sums up the Outcome. Ray, and modules that need it, are
imported late: after `ray_session` has set its environment.
"""

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsm.errors import ConfigError
from fsm.state import Limits
from runtime.checkpoints.origin import identity_of, origin_of
from runtime.checkpoints.resume import ResumePoint, ResumeRequest, find_resume_point
from runtime.control.failures import InterruptedAtStart, RunFailed, failure_of
from runtime.control.messages import Listener, Notice, Outcome, Progress, RunPlan, Start
from runtime.evaluation.sets import HeldOut
from runtime.files import FileNotWritten, writing
from runtime.generation.config import VllmEngineConfig
from runtime.generation.engine import RequestRefused
from runtime.generation.on_vllm.setup import VllmMissing, check_vllm_installed, logprobs_mode
from runtime.launch.machine import PeakMemory
from runtime.launch.preflight import Prepared, Tell, preflight, warn_of_few_held_out
from runtime.launch.signals import interrupts_by_signals, set_up_in_time
from runtime.launch.supervision.restarts import run_until_it_ends
from runtime.metrics.plot import plot_run
from runtime.metrics.writers import METRICS_FILE, SAMPLES_FILE, missing_backends
from runtime.models.directory import ModelDirectoryProblem
from runtime.output.card import steps_of_model
from runtime.output.cluster_file import LivePlace, noted_in
from runtime.output.directory import (
    FINAL_MODEL,
    alone_in,
    config_changes,
    initial_model_of,
    model_said,
    new_run_id,
    starting_in,
    write_config,
    write_run_id,
)
from runtime.output.summary import Summary
from runtime.settings import TINY, Settings, TransferQueuePlaneConfig
from runtime.tasks.base import TaskError
from runtime.tasks.config import CustomTaskConfig, ReasoningGymTaskConfig
from runtime.tasks.data import load_task, prepare_data
from runtime.tasks.rewards import RatedByFunctions
from runtime.transport.transfer_queue.installed import TransferQueueMissing, check_transfer_queue_installed
from runtime.wording import counted

TRACEBACK_FILE = "traceback.txt"
"""In a run's directory: the traceback of an error that does not explain itself."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run leaves."""

    outcome: Outcome
    summary: Summary
    places: dict[str, Path]
    """Where its files are, the most wanted last."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why attempts failed, if the run was stopped, with the next command; then what could not be saved."""
        failed = self.outcome.failed_attempts
        if self.outcome.status != "stopped" or not failed:
            return self.outcome.lost
        return (f"{failed}; for all reasons run: evenstep explain {self.places['metrics'].parent}", *self.outcome.lost)

    @property
    def to_continue(self) -> tuple[str, ...]:
        """The command that continues a run which is not completed, from its checkpoint."""
        if self.outcome.status == "completed" or self.outcome.checkpoint is None:
            return ()
        return (f"to continue: evenstep train --output {shlex.quote(str(self.places['metrics'].parent))} --resume",)

    def as_json(self) -> dict[str, Any]:
        """The summary, the controller's cost, and what went wrong."""
        outcome = self.outcome
        return {
            **self.summary,
            "status": outcome.status,
            "error": outcome.error,
            "lost": list(outcome.lost),
            "checkpoint": None if outcome.checkpoint is None else str(outcome.checkpoint),
            "checkpoints_lost": outcome.checkpoints_lost,
            "model": None if outcome.model is None else str(outcome.model),
            "core_s": round(outcome.core_s, 3),
            "controller_cpu_s": round(outcome.controller_cpu_s, 3),
            "trace_cpu_s": round(outcome.trace_cpu_s, 3),
            "late_answers": outcome.late_answers,
            "worker_restarts": outcome.worker_restarts,
            "run_restarts": list(outcome.restarts),
        }


def run_training(
    settings: Settings,
    output: Path,
    *,
    resume: ResumeRequest | None = None,
    listener: Listener = lambda message: None,
) -> RunResult:
    """Run to the end, in the directory `output`. `listener` gets the messages, in this thread.

    A KeyboardInterrupt, SIGTERM or SIGHUP ends the run early, with what it has; a second one at once. A run that had
    begun has a result, however it ended. Raises ConfigError, which leaves no directory behind and changes nothing in an
    existing one; RunFailed or InterruptedAtStart, if nothing was trained.
    """
    with interrupts_by_signals():
        began_s = time.monotonic()
        memory = PeakMemory()
        outcome: Outcome | None = None
        try:
            listener(Notice("checking the data, the model and the machine"))
            read_large_data(settings, listener)
            start = decide_start(settings, output, resume, lambda text: listener(Notice(text)))
            for notice in () if start.resume is None else start.resume.notices:
                listener(Notice(notice))
            listener(Notice(f"connecting to Ray at {at}" if (at := settings.cluster.address) else "starting Ray"))
            with memory:
                outcome = run_until_it_ends(settings, output, start, resume, listener, began_s)
        except KeyboardInterrupt:
            if outcome is None:
                raise InterruptedAtStart from None
    with interrupts_by_signals():
        summary = summary_of(settings, outcome, start, time.monotonic() - began_s, memory.peak_bytes)
        return RunResult(outcome, summary, places_of(settings, output, outcome, listener))


def read_large_data(settings: Settings, listener: Listener) -> None:
    """Read data that takes long, with progress. Raises ConfigError for that; the preflight reports all other errors."""
    told = False

    def tell(name: str, read: int, rows: int) -> None:
        nonlocal told
        told = True
        listener(Progress(f"reading {name}", read, rows))

    try:
        prepare_data(settings.data, tell)
    except TaskError as error:
        if told:
            raise ConfigError(f"the run cannot start: {error}") from None


def decide_start(
    settings: Settings, output: Path, resume: ResumeRequest | None, tell: Tell = lambda text: None
) -> Start:
    """Refuse what cannot run, and find the checkpoint to resume from. Starts and changes nothing.

    `tell` gets what a user should know before the run begins. Raises ConfigError, like `check_run`.
    """
    num_prompts, held_out = check_run(settings, output, resume=resume is not None, tell=tell)
    try:
        origin = origin_of(settings, load_task(settings.data, "training"), new_run_id())
        sets = {each.name: load_task(each.data, "validation") for each in settings.sets}
        prompts_of_sets = {name: identity_of(task) for name, task in sets.items() if task.is_listed}
    except (TaskError, ModelDirectoryProblem) as problem:
        raise ConfigError(f"the run cannot start: {problem}") from None
    if resume is None:
        return Start(num_prompts, held_out, origin, None, prompts_of_sets)
    _refuse_lost_reference(settings, initial_model_of(output))
    point = find_resume_point(output, resume, origin, set_up_in_time(settings, num_prompts), settings.data)
    _refuse_nothing_to_do(settings, output, point)
    if changes := config_changes(output, settings):
        tell(f"resuming with another configuration than the run had: {'; '.join(changes)}")
    return Start(num_prompts, held_out, point.origin, point, prompts_of_sets)


def _refuse_nothing_to_do(settings: Settings, output: Path, point: ResumePoint) -> None:
    """A run that closed all its steps, and saved its model, would only be measured and saved once more (X3)."""
    most, done = settings.grpo.max_num_steps, point.step
    if most is not None and most <= done == steps_of_model(output / FINAL_MODEL):
        raise ConfigError(
            f"nothing to do: the run in {output} has closed {counted(done, 'step')}, grpo.max_num_steps is {most}, and "
            f"{output / FINAL_MODEL} is its model. To train on, raise grpo.max_num_steps; to measure it, run: evenstep "
            f"eval {output}"
        )


def check_run(settings: Settings, output: Path, *, resume: bool, tell: Tell = lambda text: None) -> tuple[int, HeldOut]:
    """Refuse what cannot run. Returns the number of training prompts, and of each set's.

    `tell` gets what a user should know, and what takes long. Raises ConfigError, which lists every problem.
    """
    logger = settings.logger
    problems = preflight(settings, output, resume=resume, tell=tell)
    try:
        if isinstance(settings.generation.engine, VllmEngineConfig):
            check_vllm_installed()
            logprobs_mode(settings.generation)
    except (VllmMissing, RequestRefused) as refused:
        problems.append(str(refused))
    try:
        if isinstance(settings.data_plane, TransferQueuePlaneConfig):
            check_transfer_queue_installed()
    except TransferQueueMissing as missing:
        problems.append(str(missing))
    problems += missing_backends(
        tensorboard=logger.tensorboard, prometheus_port=logger.prometheus_port, wandb_project=logger.wandb_project
    )
    refuse(problems)
    return count_items(settings, tell)


def refuse(problems: Sequence[str]) -> None:
    """Raise ConfigError with all of these problems, if there are any."""
    if problems:
        raise ConfigError("\n  - ".join(["the run cannot start:", *problems]))


def count_items(settings: Settings, tell: Tell) -> tuple[int, HeldOut]:
    """The number of training prompts, and of each set's. Raises ConfigError if they are too few to train on."""
    try:
        num_prompts = load_task(settings.data, "training").num_prompts
        held_out = {each.name: load_task(each.data, "validation").num_prompts for each in settings.sets}
    except TaskError as error:
        raise ConfigError(f"the run cannot start: {error}") from None
    _refuse_too_few(num_prompts, set_up_in_time(settings, num_prompts).limits)
    _warn_of_deadlines(settings, tell)
    warn_of_few_held_out(settings, held_out, tell)
    return num_prompts, held_out


def _refuse_too_few(num_prompts: int, limits: Limits) -> None:
    """Data that fills no step would train nothing (A5)."""
    usable = num_prompts * limits.epochs if limits.uses_pool else num_prompts
    if not limits.closes_short and usable < limits.size:
        raise ConfigError(
            f"the run cannot start: the data has {counted(num_prompts, 'prompt')}, fewer than "
            f"grpo.num_prompts_per_step = {limits.size}, so no step could be filled and nothing would be trained. Set "
            f"num_prompts_per_step to {max(num_prompts, 1)} or less, or give more data"
        )


def _warn_of_deadlines(settings: Settings, tell: Tell) -> None:
    """An attempt that ends before its verdict's deadline never shows in which line its verifier hangs."""
    attempt_s = settings.async_rl.rollout_failure.rollout_timeout_s
    task = settings.data.task
    if isinstance(task, CustomTaskConfig) and attempt_s is not None and task.timeout_s >= attempt_s:
        tell(
            f"data.task.timeout_s is {task.timeout_s:g}, and an attempt as a whole has "
            f"async_rl.rollout_failure.rollout_timeout_s = {attempt_s:g} s: a tool that hangs looks like any slow "
            "attempt; set the former below the latter, and the failure names its line"
        )
    if attempt_s is None or not isinstance(task, RatedByFunctions | ReasoningGymTaskConfig):
        return
    if task.verdict_timeout_s >= attempt_s:
        tell(
            f"data.task.verdict_timeout_s is {task.verdict_timeout_s:g}, and an attempt as a whole has "
            f"async_rl.rollout_failure.rollout_timeout_s = {attempt_s:g} s: a verifier that hangs looks like any "
            "slow attempt; set the former below the latter, and the failure names its line"
        )


def _refuse_lost_reference(settings: Settings, initial: Path) -> None:
    """The tiny model that a run began with is also its KL reference, and a new one may differ from it."""
    if settings.policy.model_name == TINY and settings.loss_fn.reference_policy_kl_penalty and not initial.exists():
        raise ConfigError(
            f"the run cannot start: {initial} is gone, which is the reference of loss_fn.reference_policy_kl_penalty = "
            f"{settings.loss_fn.reference_policy_kl_penalty:g}. Put it back from a copy, or set the penalty to 0"
        )


def run_on_ray(
    settings: Settings, output: Path, start: Start, listener: Listener, began_s: float = 0.0, restarts: int = 0
) -> Outcome:
    """`run_training` on the Ray session; its command began at `began_s` (monotonic; 0: now). Raises the same errors."""
    import ray

    from runtime.launch.driving import drive
    from runtime.naming import Names, missing_resources

    missing = "; ".join(missing_resources(settings))
    if missing and settings.cluster.address is None:
        raise ConfigError(
            f"the run cannot start: {missing}. Set cluster.trainer_device to cpu and generation to an engine on the "
            f"CPU, ask for fewer workers or ranks, or give cluster.address of a cluster that has them"
        )
    if missing:
        listener(Notice(f"waiting for the cluster to grow: {missing}"))
    names = Names(settings.cluster.run_name or time.strftime("run-%Y%m%d-%H%M%S"), settings.cluster.namespace)
    listener(Notice(f"run {names.run} in {output}; evenstep status {shlex.quote(str(output))} says where it stands"))
    place = LivePlace(names.run, ray.get_runtime_context().gcs_address, names.namespace)
    listener(Notice(f"counting the prompts and preparing the model {model_said(settings, output)}"))
    with starting_in(output) as removed, _refused_files():
        if removed:
            listener(Notice(f"the last run that started in {output} never began: removed its {', '.join(removed)}"))
        if start.resume is None:
            write_run_id(output, start.origin.run)
        with alone_in(output), noted_in(output, place, lambda text: listener(Notice(text))):
            model = _prepare_model(settings, initial_model_of(output), listener)
            if start.resume is None:
                write_config(output, settings)
            plan = RunPlan(settings, names, model, output.resolve(), start, began_s or time.monotonic(), restarts)
            return drive(plan, listener)


@contextmanager
def _refused_files() -> Iterator[None]:
    """Raise ConfigError for a file that cannot be written before the run begins."""
    try:
        yield
    except FileNotWritten as error:
        raise ConfigError(f"the run cannot start: {error}") from None


def _prepare_model(settings: Settings, directory: Path, listener: Listener) -> Path:
    """Prepare the model in another process, since this one never imports torch. Raises as `run_training` does."""
    import ray
    from ray.exceptions import RayError

    from runtime.naming import on_this_node

    def prepare(settings: Settings, directory: Path) -> Iterator[Prepared | Progress]:
        from runtime.launch.model import prepare

        yield from prepare(settings, directory)

    # It writes to the run's directory. The node of this process may have no CPU to give, as a cluster's head often has.
    options = {"num_cpus": 0, "max_calls": 1, "scheduling_strategy": on_this_node(), "num_returns": "streaming"}
    task: Any = ray.remote(**options)(prepare)
    try:
        for reference in task.remote(settings, directory.resolve()):
            message: Prepared | Progress = ray.get(reference)
            if isinstance(message, Progress):
                listener(message)
            else:
                prepared = message
    except RayError as error:
        failure = failure_of(error)
        if isinstance(failure.cause, FileNotWritten):
            raise failure.cause from None
        raise RunFailed(failure.says, failure.traceback, infra=failure.infra) from error
    except KeyboardInterrupt:
        raise InterruptedAtStart from None
    for notice in prepared.found.notices:
        listener(Notice(notice))
    refuse(prepared.found.refusals)
    assert prepared.directory is not None, "nothing is refused"
    return prepared.directory


def summary_of(settings: Settings, outcome: Outcome, start: Start, wall_s: float, peak_bytes: int) -> Summary:
    """The JSON of `--summary`."""
    return Summary(
        accuracy_before=outcome.accuracy_before,
        accuracy_after=outcome.accuracy_after,
        accuracy_by_set=outcome.accuracy_by_set,
        steps=len(outcome.closed),
        closed=outcome.closed,
        balance=outcome.balance,
        steps_without_tokens=outcome.steps_without_tokens,
        steps_not_applied=outcome.steps_not_applied,
        wall_s=round(wall_s, 3),
        rl_s=round(outcome.rl_s, 3),
        peak_memory_bytes=peak_bytes,
        resumed_at=None if start.resume is None else start.resume.step,
        trace=None if outcome.trace is None else str(outcome.trace),
        seed=settings.seed,
        config=settings.model_dump(mode="json"),
    )


def places_of(settings: Settings, output: Path, outcome: Outcome, listener: Listener) -> dict[str, Path]:
    """Where the files of a run are, in `output` as it was given. Also draws the plot and writes the traceback."""
    places = {"metrics": output / METRICS_FILE}
    if (output / SAMPLES_FILE).is_file():
        places["samples"] = output / SAMPLES_FILE
    if outcome.trace is not None:
        places["trace"] = outcome.trace
    if settings.logger.plot and outcome.closed:
        try:
            places["plot"] = plot_run(output / METRICS_FILE, output / "plot.png")
        except FileNotWritten as error:
            listener(Notice(str(error)))
        except KeyboardInterrupt:
            listener(Notice("interrupted: the plot is not drawn"))
    if outcome.traceback is not None:
        try:
            with writing(output / TRACEBACK_FILE, "it is lost"):
                (output / TRACEBACK_FILE).write_text(outcome.traceback, encoding="utf-8")
            places["traceback"] = output / TRACEBACK_FILE
        except FileNotWritten as error:
            listener(Notice(str(error)))
    kept = {"checkpoint": outcome.checkpoint, "model": outcome.model}
    places |= {name: place for name, place in kept.items() if place is not None}
    within = output.resolve()
    return {
        name: output / place.relative_to(within) if place.is_relative_to(within) else place
        for name, place in places.items()
    }
