"""The process that started a run: it starts the controller, hears it out, and never waits for ever for its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsm.config.parse import StallWatchdogConfig
from fsm.errors import ConfigError, EvenstepError, LimitReached
from runtime.checkpoints.names import CHECKPOINTS, list_checkpoints
from runtime.control.failures import InterruptedAtStart, RunFailed, failure_of
from runtime.control.messages import Ending, Message, Notice, Outcome, StepDone
from runtime.control.saving import CLOSING_SHARE, HEARING_SHARE
from runtime.explain.live import Standing
from runtime.files.unwritten import FileNotWritten
from runtime.launch.on_signal import on_sigusr1
from runtime.launch.processes import within
from runtime.models.directory import UnsupportedModel
from runtime.output.shared_output import SharedOutput, shared_output
from runtime.trace.notes import Status

if TYPE_CHECKING:
    from runtime.control.controller import RunPlan

Listener = Callable[[Message], None]


@dataclass(slots=True)
class _Heard:
    """What is known of the run here, in case its controller says no more."""

    patience_s: float
    """How long the end of the run may be silent."""
    began: bool = False
    interrupted: bool = False
    ending: Outcome | None = None
    """The outcome as far as it was told."""
    closed: list[dict[str, int]] = field(default_factory=list)
    steps_without_tokens: int = 0
    deadline_s: float | None = None
    """When nothing more is waited for, on the monotonic clock; None while the run goes on."""
    heard_s: float = field(default_factory=time.monotonic)
    """When the controller last said anything. A run that has begun says every second where it stands."""

    def hear(self, message: Message) -> None:
        """Take note of it."""
        self.heard_s = time.monotonic()
        match message:
            case Standing():
                self.began = True
            case StepDone(record):
                self.closed.append({key: record[key] for key in ("step", "selected", "charged", "short")})
                self.steps_without_tokens += record["trained_tokens"] == 0
            case Ending(outcome):
                self.ending = outcome
                self.be_patient()

    def be_patient(self) -> None:
        """From now on the end may be silent for so long."""
        self.deadline_s = time.monotonic() + self.patience_s

    @property
    def left_s(self) -> float:
        """How long the end may still take."""
        return math.inf if self.deadline_s is None else max(self.deadline_s - time.monotonic(), 0.0)

    @property
    def silent_s(self) -> float:
        """For how long a run that has begun has said nothing."""
        return time.monotonic() - self.heard_s if self.began else 0.0


SILENT_S = 15.0
"""From here on it is said that nothing was heard of a run."""
_SILENT = "the controller does not answer: its process is frozen, or a custom sampler does not return"


class _NoOutcome(EvenstepError):
    """The controller does not tell the end of the run, or nobody waits for it."""


def drive(plan: RunPlan, listener: Listener) -> Outcome:
    """As `_drive`, in a directory that all processes of the run must see."""
    with shared_output(plan.output) as shared:
        return _drive(plan, shared, listener)


def _drive(plan: RunPlan, shared: SharedOutput, listener: Listener) -> Outcome:
    """Start a controller on the Ray session that is there, and hear it out.

    A KeyboardInterrupt ends the run early; a second one at once, with what is known by then. Whatever becomes of the
    controller, a run that had begun has an Outcome, within `cluster.shutdown_timeout_s` of its end (W3).
    Raises what ended a run that had not begun: RunFailed, InterruptedAtStart, or a ConfigError.
    """
    import ray
    from ray.exceptions import RayError

    from runtime.control.controller import Controller
    from runtime.naming import on_this_node, start_actor

    timeout_s = plan.settings.cluster.shutdown_timeout_s
    heard = _Heard(HEARING_SHARE * timeout_s)
    watchdog = plan.settings.async_rl.stall_watchdog
    options = {**plan.names.options("controller"), "num_cpus": 0, "scheduling_strategy": on_this_node()}
    controller = start_actor(Controller, options, plan, shared)
    stream: Any = controller.run.remote()
    dumping = on_sigusr1(lambda: ray.get(controller.dump_trace.remote()))
    try:
        try:
            return _hear_out(stream, heard, listener, watchdog)
        except KeyboardInterrupt:
            try:
                heard.interrupted = True
                heard.be_patient()
                controller.interrupt.remote()
                listener(Notice("interrupted: the run saves what it has and ends; interrupt again to end it at once"))
                return _hear_out(stream, heard, listener, watchdog)
            except KeyboardInterrupt:
                raise _NoOutcome("the run was interrupted again, and its end was not waited for") from None
    except (RayError, _NoOutcome) as error:
        return _outcome_without_controller(heard, error, next(iter(list_checkpoints(plan.output / CHECKPOINTS)), None))
    finally:
        dumping.close()
        within(CLOSING_SHARE * timeout_s, lambda: ray.kill(controller))


def _hear_out(stream: Any, heard: _Heard, listener: Listener, watchdog: StallWatchdogConfig) -> Outcome:
    """Pass on what the controller tells, until its last message.

    The watchdog lives in the controller, so here it is the controller that is watched (W2): a frozen process, or a
    custom sampler that does not return, silences it.
    """
    import ray

    told_s = SILENT_S
    while True:
        there, _ = ray.wait([stream], timeout=min(heard.left_s, SILENT_S))
        if not there and heard.left_s == 0.0:
            raise _NoOutcome(
                f"the controller did not say how the run ended within {heard.patience_s:.0f} s (cluster."
                "shutdown_timeout_s): it, or an actor that it waits for, does not answer"
            )
        silent_s = heard.silent_s
        if not there and silent_s >= watchdog.stall_timeout_s and watchdog.stall_action == "abort":
            raise _NoOutcome(f"no progress for {silent_s:.0f} s, stall_timeout_s is over: {_SILENT}")
        if not there and silent_s >= told_s:
            told_s = 2 * silent_s
            listener(Notice(f"nothing was heard of the run for {silent_s:.0f} s: {_SILENT}"))
        if not there:
            continue
        messages: Sequence[Message] = ray.get(next(stream))
        for message in messages:
            if isinstance(message, Outcome):
                return message
            heard.hear(message)
            listener(message)


def _outcome_without_controller(heard: _Heard, error: Exception, checkpoint: Path | None) -> Outcome:
    """What is known of the end of a run whose controller died, or is silent; `checkpoint` is the newest on the disk.

    Raises RunFailed, InterruptedAtStart or a ConfigError where the run had not begun.
    """
    failure = failure_of(error)
    if heard.ending is not None:
        return replace(heard.ending, lost=(*heard.ending.lost, failure.says))
    status: Status = "stopped" if isinstance(failure.cause, LimitReached) else "failed"
    if not heard.began and isinstance(failure.cause, ConfigError | UnsupportedModel | FileNotWritten):
        raise ConfigError(f"the run cannot start: {failure.says.removeprefix('the run cannot start: ')}")
    if not heard.began:
        raise (
            InterruptedAtStart
            if heard.interrupted or isinstance(failure.cause, InterruptedAtStart)
            else RunFailed(failure.says, failure.traceback, status)
        )
    return Outcome(
        status="interrupted" if heard.interrupted else status,
        error=None if heard.interrupted else failure.says,
        lost=(failure.says,) if heard.interrupted else (),
        accuracy_before=None,
        accuracy_after=None,
        closed=heard.closed,
        balance={},
        rl_s=0.0,
        core_s=0.0,
        controller_cpu_s=0.0,
        trace_cpu_s=0.0,
        late_answers=0,
        worker_restarts=0,
        steps_without_tokens=heard.steps_without_tokens,
        trace=None,
        checkpoint=checkpoint,
        model=None,
        traceback=None if isinstance(error, _NoOutcome) else failure.traceback,
    )
