"""The process that started a run: it starts the controller and receives its messages. Every wait of it has a bound.

Start with `drive`. The watchdog lives in the controller, so this process watches the controller (W2): a frozen process,
or a custom sampler that does not return, silences it.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fsm.config.blocks import StallWatchdogConfig
from fsm.errors import ConfigError, EvenstepError, LimitReached
from runtime.checkpoints.checkpoint import CHECKPOINTS, list_checkpoints
from runtime.control.failures import InterruptedAtStart, RunFailed, failure_of
from runtime.control.held import held_at
from runtime.control.messages import (
    CLOSING_SHARE,
    HEARING_SHARE,
    ClientRuns,
    ControllerRuns,
    Ending,
    Listener,
    Message,
    Notice,
    Outcome,
    RunPlan,
    StepDone,
)
from runtime.control.wall_clock import OutOfTime
from runtime.explain.live import Standing
from runtime.files import FileNotWritten
from runtime.launch.processes import within
from runtime.launch.signals import on_sigusr1
from runtime.launch.supervision.roles import is_controller
from runtime.models.directory import UnsupportedModel
from runtime.output.shared_output import shared_output
from runtime.trace.notes import Status

BEAT_S = 1.0
"""The longest time between two messages that this process runs (`ClientRuns`)."""
SILENT_S = 15.0
"""After so long without a message, the user is told."""


class _NoOutcome(EvenstepError):
    """The controller does not report the end of the run, or the user does not wait for it."""


@dataclass(slots=True)
class Heard:
    """What this process knows of the run, in case its controller says no more."""

    patience_s: float
    """How long the end of the run may be silent."""
    began: bool = False
    interrupted: bool = False
    ending: Outcome | None = None
    """The outcome as far as it was reported."""
    controller: ControllerRuns | None = None
    closed: list[dict[str, int]] = field(default_factory=list)
    steps_without_tokens: int = 0
    steps_not_applied: int = 0
    deadline_s: float | None = None
    """When the wait for the end is over, on the monotonic clock; None while the run continues."""
    heard_s: float = field(default_factory=time.monotonic)
    """When the last message came. A run that has begun sends one every second."""

    def hear(self, message: Message) -> None:
        self.heard_s = time.monotonic()
        match message:
            case Standing():
                self.began = True
            case ControllerRuns():
                self.controller = message
            case StepDone(record):
                self.closed.append({key: record[key] for key in ("step", "selected", "charged", "short")})
                self.steps_without_tokens += record["trained_tokens"] == 0
                self.steps_not_applied += record["not_finite"] is not None
            case Ending(outcome):
                self.ending = outcome
                self.expect_end()

    def expect_end(self) -> None:
        """The run is ending: from now on, `patience_s` without a message is too long."""
        self.deadline_s = time.monotonic() + self.patience_s

    @property
    def left_s(self) -> float:
        return math.inf if self.deadline_s is None else max(self.deadline_s - time.monotonic(), 0.0)

    @property
    def silent_s(self) -> float:
        """How long a run that has begun has sent nothing."""
        return time.monotonic() - self.heard_s if self.began else 0.0


def drive(plan: RunPlan, listener: Listener) -> Outcome:
    """Start a controller on the connected Ray session, and receive its messages until the run's Outcome.

    A KeyboardInterrupt ends the run early; a second one at once, with the Outcome known by then. Even if the controller
    dies or hangs, a run that had begun has an Outcome, within `cluster.shutdown_timeout_s` of its end (W3).
    Raises what ended a run that had not begun: RunFailed, InterruptedAtStart, or a ConfigError.
    """
    import ray
    from ray.exceptions import RayError

    from runtime.control.controller import Controller
    from runtime.naming import on_this_node, start_actor

    timeout_s = plan.settings.cluster.shutdown_timeout_s
    heard = Heard(HEARING_SHARE * timeout_s)
    options = {**plan.names.options("controller"), "num_cpus": 0, "scheduling_strategy": on_this_node()}
    with shared_output(plan.output) as shared:
        controller = start_actor(Controller, options, plan, shared)
        stream: Any = controller.run.remote()
        try:
            with on_sigusr1(lambda: ray.get(controller.dump_trace.remote())):
                return _hear_out(controller, stream, heard, listener, plan.settings.async_rl.stall_watchdog)
        except (RayError, _NoOutcome) as error:
            return outcome_without_controller(heard, error, newest_of(plan.output))
        finally:
            within(CLOSING_SHARE * timeout_s, lambda: ray.kill(controller))


def _hear_out(controller: Any, stream: Any, heard: Heard, listener: Listener, watchdog: StallWatchdogConfig) -> Outcome:
    """All messages, with one interrupt."""
    try:
        return _hear(stream, heard, listener, watchdog)
    except KeyboardInterrupt:
        try:
            heard.interrupted = True
            heard.expect_end()
            controller.interrupt.remote()
            listener(Notice("interrupted: the run saves what it has and ends; interrupt again to end it at once"))
            return _hear(stream, heard, listener, watchdog)
        except KeyboardInterrupt:
            raise _NoOutcome("the run was interrupted again, and its end was not waited for") from None


def _hear(stream: Any, heard: Heard, listener: Listener, watchdog: StallWatchdogConfig) -> Outcome:
    """Pass messages on until the Outcome, the last one. Raises _NoOutcome if the controller is silent too long."""
    import ray

    told_s = SILENT_S
    while True:
        listener(ClientRuns())
        there, _ = ray.wait([stream], timeout=min(heard.left_s, BEAT_S))
        if there:
            messages: Sequence[Message] = ray.get(next(stream))
            for message in messages:
                if isinstance(message, Outcome):
                    return message
                heard.hear(message)
                listener(message)
            continue
        if heard.left_s == 0.0:
            raise _NoOutcome(
                f"the controller did not say how the run ended within {heard.patience_s:.0f} s (cluster."
                "shutdown_timeout_s): it, or an actor that it waits for, does not answer"
            )
        silent_s = heard.silent_s
        if silent_s >= watchdog.stall_timeout_s and watchdog.stall_action == "abort":
            raise _NoOutcome(f"no progress for {silent_s:.0f} s, stall_timeout_s is over: {_why_silent(heard)}")
        if silent_s >= told_s:
            told_s = 2 * silent_s
            listener(Notice(f"nothing was heard of the run for {silent_s:.0f} s: {_why_silent(heard)}"))


def _why_silent(heard: Heard) -> str:
    """Why a controller that lives does not answer: user's code that does not return is named."""
    runs = heard.controller
    line = held_at(runs.pid, runs.stacks) if runs is not None and is_controller(runs.pid) else None
    if line is None:
        return "the controller does not answer: its process is frozen, or code that it called does not return"
    return f"the controller waits for a custom sampler, which does not return: {line}"


def newest_of(output: Path) -> Path | None:
    """The newest checkpoint of a run, whole or not."""
    return next(iter(list_checkpoints(output / CHECKPOINTS)), None)


def outcome_without_controller(heard: Heard, error: Exception, checkpoint: Path | None) -> Outcome:
    """The outcome of a run whose controller died or is silent, from its messages; `checkpoint` is the newest on disk.

    Raises RunFailed, InterruptedAtStart or a ConfigError if the run had not begun.
    """
    failure = failure_of(error)
    if heard.ending is not None:
        return replace(heard.ending, lost=(*heard.ending.lost, failure.says))
    status: Status = "stopped" if isinstance(failure.cause, LimitReached) else "failed"
    if isinstance(failure.cause, OutOfTime):
        status = "interrupted"
    if not heard.began and isinstance(failure.cause, ConfigError | UnsupportedModel | FileNotWritten):
        raise ConfigError(f"the run cannot start: {failure.says.removeprefix('the run cannot start: ')}")
    if not heard.began:
        raise (
            InterruptedAtStart
            if heard.interrupted or isinstance(failure.cause, InterruptedAtStart)
            else RunFailed(failure.says, failure.traceback, status, infra=failure.infra)
        )
    return Outcome(
        status="interrupted" if heard.interrupted else status,
        error=None if heard.interrupted else failure.says,
        lost=(failure.says,) if heard.interrupted else (),
        closed=heard.closed,
        steps_without_tokens=heard.steps_without_tokens,
        steps_not_applied=heard.steps_not_applied,
        checkpoint=checkpoint,
        traceback=None if isinstance(error, _NoOutcome) else failure.traceback,
        infra=failure.infra and not heard.interrupted,
    )
