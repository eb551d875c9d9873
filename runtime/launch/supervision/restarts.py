"""Attempt after attempt at a run, each from the last checkpoint, until it ends for a reason of its own.

Only infrastructure's faults are worth another attempt: a process that died or is frozen, an object that is lost. What
the configuration, a rule, users' code or evenstep itself is to blame for would come again.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fsm.errors import ConfigError, EvenstepError
from runtime.checkpoints.checkpoint import CHECKPOINTS, CheckpointRefused, list_checkpoints, load, step_of
from runtime.checkpoints.origin import has_another_template
from runtime.checkpoints.resume import NAMED, ResumeRefused, ResumeRequest, find_resume_point
from runtime.control.failures import InterruptedAtStart, RunFailed
from runtime.control.messages import Listener, Message, Notice, Outcome, Start, StepDone, ValidationDone
from runtime.launch.signals import set_up_in_time
from runtime.launch.supervision.attempt import AttemptEnd, attempt
from runtime.launch.supervision.ray_client import Assignment
from runtime.metrics.writers import METRICS_FILE
from runtime.output.card import of_whole_run
from runtime.output.directory import hold
from runtime.output.restart_file import forget_restart, note_interrupt, note_restart
from runtime.settings import Settings
from runtime.trace.notes import Status
from runtime.wording import counted

WAIT_S = 10.0
"""Before another attempt if the last one trained no new step, times such attempts: the fault may be passing."""
IN_VAIN = 2
"""So many restarts in a row without a new step are the last."""

Attempting = Callable[[Assignment, Listener], AttemptEnd]
_Skipped = ResumeRefused | CheckpointRefused
"""Both have the path of a checkpoint and the reason."""


class _NoneLeft(EvenstepError):
    """The checkpoint that the run was to resume from is lost, and there is no other."""

    def __init__(self, lost: Sequence[_Skipped]) -> None:
        listed = "; ".join(f"{error.path.name}: {error.reason}" for error in lost[:NAMED])
        super().__init__(
            f"the run is not restarted, since it has no whole checkpoint left ({listed}). Put one back from a copy and "
            "continue with --resume, or start a new run in another directory"
        )


@dataclass(slots=True)
class _History:
    """The attempts so far, as one run."""

    listener: Listener
    output: Path
    steps: int
    """Steps closed, over all attempts."""
    restarts: list[str] = field(default_factory=list)
    in_vain: int = 0
    """The last restarts that brought no new step."""
    before: dict[str, float] = field(default_factory=dict)
    """The first accuracy of each set."""
    outcomes: list[Outcome] = field(default_factory=list)
    """Of earlier attempts."""
    metrics_before: int = 0
    """Bytes of metrics.jsonl when the run was started."""
    held: int | None = None
    """The lock of the directory, so that `status` and `explain` know of this process between two attempts."""

    def hold(self) -> None:
        if self.held is None:
            self.held = hold(self.output)

            forget_restart(self.output)  # a killed process may have left one

    def let_go(self) -> None:
        forget_restart(self.output)
        if self.held is not None:
            os.close(self.held)

    def hear(self, message: Message) -> None:
        self.hold()
        match message:
            case StepDone(record):
                if record["step"] >= self.steps:
                    self.steps, self.in_vain = record["step"] + 1, 0
            case ValidationDone(_, name, accuracy):
                self.before.setdefault(name, accuracy)
        self.listener(message)

    def count_written_steps(self) -> None:
        """Steps that closed just before a process died, whose messages are lost, are in metrics.jsonl."""
        try:
            with (self.output / METRICS_FILE).open("rb") as file:
                file.seek(self.metrics_before)
                written = [json.loads(line) for line in file if line.endswith(b"\n")]
        except (OSError, ValueError):
            return  # a damaged file: what was heard is known
        steps = max((record["step"] + 1 for record in written if record.get("kind") == "step"), default=0)
        if steps > self.steps:
            self.steps, self.in_vain = steps, 0

    def outcome(self, last: Outcome) -> Outcome:
        """Of all attempts, which are one run: the first accuracy, the sums, the last end."""
        if not self.restarts:
            return last
        all_of_them = [*self.outcomes, last]
        accuracy = {name: {**measured} for name, measured in last.accuracy_by_set.items()}
        for name, measured in accuracy.items():
            measured.update({"before": self.before[name]} if name in self.before else {})
        return replace(
            last,
            accuracy_by_set=accuracy,
            rl_s=sum(each.rl_s for each in all_of_them),
            core_s=sum(each.core_s for each in all_of_them),
            controller_cpu_s=sum(each.controller_cpu_s for each in all_of_them),
            trace_cpu_s=sum(each.trace_cpu_s for each in all_of_them),
            late_answers=sum(each.late_answers for each in all_of_them),
            worker_restarts=sum(each.worker_restarts for each in all_of_them),
            steps_without_tokens=sum(each.steps_without_tokens for each in all_of_them),
            restarts=tuple(self.restarts),
        )


def run_until_it_ends(
    settings: Settings,
    output: Path,
    start: Start,
    request: ResumeRequest | None,
    listener: Listener,
    began_s: float,
    attempting: Attempting = attempt,
) -> Outcome:
    """The run, restarted at most `cluster.max_run_restarts` times. Its Outcome is that of one run.

    `request` is what the user resumed with; `began_s` is when the command began, on the monotonic clock. Raises
    ConfigError, and RunFailed or InterruptedAtStart if the run had not begun in any attempt.
    """
    others = {path.name for path in list_checkpoints(output / CHECKPOINTS)}
    closed = 0 if start.resume is None else start.resume.step
    history = _History(listener, output, closed)
    if (output / METRICS_FILE).is_file():
        history.metrics_before = (output / METRICS_FILE).stat().st_size
    try:
        history.hold()
        outcome = _attempts(settings, history, start, others, request, began_s, attempting)
    finally:
        history.let_go()
    if start.resume is None:
        return outcome
    return replace(outcome, accuracy_by_set=of_whole_run(outcome.accuracy_by_set, output))


def _attempts(
    settings: Settings,
    history: _History,
    start: Start,
    others: set[str],
    request: ResumeRequest | None,
    began_s: float,
    attempting: Attempting,
) -> Outcome:
    first, output = start, history.output
    while True:
        end = attempting(
            Assignment(settings, output, start, began_s, len(history.restarts), list(sys.argv)), history.hear
        )
        lost = _lost(start) if history.restarts and isinstance(end.error, RunFailed) else None
        if lost is not None:  # the attempt had nothing else against it, so another one may go well
            end = replace(end, infra=f"checkpoint {lost.path.name} cannot be loaded: {lost.reason}")
        try:
            history.count_written_steps()
            refusal = _no_restart(settings, history, end, first)
            if end.infra is None or refusal is not None:
                return _told(history, end, refusal)
            if end.outcome is not None:
                history.outcomes.append(end.outcome)
            start, skipped = _next_start(settings, output, first, others, request, lost)
            _tell_restart(settings, history, end.infra, start, skipped)
            time.sleep(history.in_vain * WAIT_S)
            if (lost := _lost(start)) is not None:
                history.restarts.pop()
                start, skipped = _next_start(settings, output, first, others, request, lost)
                _tell_other_start(history, end.infra, start, [lost, *skipped])
        except KeyboardInterrupt as interrupt:
            by = str(interrupt) or "SIGINT"
            return _told(history, AttemptEnd(None, InterruptedAtStart(), None, interrupted_by=by), None)
        except _NoneLeft as error:
            return _told(history, AttemptEnd(None, RunFailed(f"{end.infra}; {error}"), None), None)
        history.in_vain += 1


def _no_restart(settings: Settings, history: _History, end: AttemptEnd, first: Start) -> str | None:
    """Why an attempt that infrastructure ended is the last."""
    most, done = settings.cluster.max_run_restarts, len(history.restarts)
    if done >= most:
        return f"the run was restarted {counted(done, 'time')}, and cluster.max_run_restarts is {most}" if most else ""
    if history.in_vain >= IN_VAIN:
        return f"the last {IN_VAIN} restarts trained no new step, so the fault is not a passing one"
    if end.infra is not None and has_another_template(settings.data, first.origin):
        return (
            f"{settings.data.chat_template} has changed since the run began, so it is not restarted: put the old "
            "template back and continue with --resume"
        )
    return None


def _told(history: _History, end: AttemptEnd, refusal: str | None) -> Outcome:
    """The end of the last attempt, which is the run's. Raises its error if nothing was trained in any."""
    outcome = _outcome(history, end, refusal)
    if end.interrupted_by is not None and outcome.status == "interrupted":
        note_interrupt(history.output, outcome.error)
    return outcome


def _outcome(history: _History, end: AttemptEnd, refusal: str | None) -> Outcome:
    why = f"; {refusal}" if refusal and end.infra is not None else ""
    if end.outcome is not None:
        outcome = end.outcome
        if why and outcome.error is not None:
            outcome = replace(outcome, error=f"{outcome.error}{why}")
        return history.outcome(outcome)
    assert end.error is not None, "an attempt without an outcome has an error"
    known = next((each for each in reversed(history.outcomes)), None)
    if known is None:
        raise _with(end.error, why)
    status: Status = "interrupted" if isinstance(end.error, InterruptedAtStart) else "failed"
    by = end.interrupted_by or "an interrupt"
    error = f"{end.error}{why}" if status == "failed" else f"{by} came while the run was restarted"
    return history.outcome(replace(known, status=status, error=error))


def _with(error: EvenstepError, why: str) -> EvenstepError:
    if not why or not isinstance(error, RunFailed):
        return error
    return RunFailed(f"{error}{why}", error.traceback, error.status)


def _next_start(
    settings: Settings,
    output: Path,
    first: Start,
    others: set[str],
    request: ResumeRequest | None,
    lost: CheckpointRefused | None,
) -> tuple[Start, list[ResumeRefused]]:
    """From the newest whole checkpoint that this run wrote since it was started; without one, as it was started.

    Also why each newer one is skipped: a process that is killed may leave it torn. `lost` is the one that the run was
    to resume from, and that is gone. Raises _NoneLeft if that was the last, or the user's own `first` is gone too.
    """
    accepts = request is not None and request.accepts_other_data
    skipped = []
    for path in list_checkpoints(output / CHECKPOINTS):
        if path.name in others:
            continue
        try:
            setup, ask = set_up_in_time(settings, first.num_prompts), ResumeRequest(str(path.resolve()), accepts)
            point = find_resume_point(output, ask, first.origin, setup, settings.data)
        except ResumeRefused as error:
            skipped.append(error)
            continue
        except ConfigError:
            continue  # of the configuration, which the attempt is told by the controller
        return replace(first, resume=point, origin=point.origin), skipped
    lost = _lost(first) or (lost if first.resume is None else None)
    if lost is not None:
        raise _NoneLeft([lost, *skipped])
    return first, skipped


def _lost(start: Start) -> CheckpointRefused | None:
    """Why the checkpoint of a start, which was verified, cannot be loaded any more; None if it can or there is none."""
    if start.resume is None:
        return None
    try:
        load(start.resume.checkpoint, hashed=False)
    except CheckpointRefused as error:
        return error
    return None


def _tell_other_start(history: _History, why: str, start: Start, skipped: Sequence[_Skipped]) -> None:
    """The checkpoint that was told is lost, and another start takes its place."""
    _tell_skipped(history, skipped)
    goes_on, _ = _goes_on(history, start, skipped)
    history.restarts.append(f"{why}; {goes_on}")
    history.listener(Notice(f"instead {goes_on}"))


def _tell_restart(
    settings: Settings, history: _History, why: str, start: Start, skipped: Sequence[ResumeRefused]
) -> None:
    _tell_skipped(history, skipped)
    number, most = len(history.restarts) + 1, settings.cluster.max_run_restarts
    goes_on, step = _goes_on(history, start, skipped)
    history.restarts.append(f"{why}; {goes_on}")
    cost = "; checkpointing.every_steps sets how many" if history.steps > step else ""
    note_restart(history.output, number, most)
    history.listener(Notice(f"the run is restarted ({number} of at most {most}): {why}; {goes_on}{cost}"))


def _tell_skipped(history: _History, skipped: Sequence[_Skipped]) -> None:
    for error in skipped:
        history.listener(Notice(f"checkpoint {error.path.name} is skipped: {error.reason}"))


def _goes_on(history: _History, start: Start, skipped: Sequence[_Skipped]) -> tuple[str, int]:
    """Where the run goes on and which steps are trained again, in words; and the first step that it trains."""
    if start.resume is None:
        none = "none of its checkpoints is whole" if skipped else "no checkpoint was written yet"
        return f"{none}, so it starts from the beginning{_again(0, history.steps)}", 0
    step = step_of(start.resume.checkpoint)
    return f"it resumes from {start.resume.checkpoint.name}{_again(step, history.steps)}", step


def _again(step: int, steps: int) -> str:
    """Which steps are trained again; `step` is the checkpoint's, and so the first of them."""
    if steps <= step:
        return ", and no step is trained again"
    return f", and {f'step {step} is' if steps == step + 1 else f'steps {step} to {steps - 1} are'} trained again"
