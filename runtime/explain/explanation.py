"""`explain`: the verdict on a run at one moment; of a run that is over also its outcome and its newest checkpoint."""

import shlex
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fsm.errors import BelowFloor, BudgetExceeded, SearchExceeded
from fsm.explain import status
from fsm.machines.trainer import TrainerState
from runtime.checkpoints.checkpoint import CHECKPOINTS, list_checkpoints, looks_whole, step_of
from runtime.explain.dead_ends import cause_of, proof_of
from runtime.explain.finding import Finding, RunVerdict, seconds
from runtime.explain.losses import DataFailures, failures_of
from runtime.explain.situation import Look, Situation, is_open, situation_at
from runtime.explain.waits import stalled, starved, waiting
from runtime.output.directory import is_left
from runtime.output.restart_file import interrupt_in
from runtime.trace.notes import EXIT_CODES, RunEnded
from runtime.trace.reader import TraceFile
from runtime.wording import counted

EXIT = {
    **{RunVerdict(status): code for status, code in EXIT_CODES.items()},
    RunVerdict.HEALTHY: 0,
    RunVerdict.SLOW: 0,
    RunVerdict.STARVED: 4,
    RunVerdict.STALLED: 5,
    RunVerdict.LIVELOCKED: 6,
    RunVerdict.DEADLOCKED: 7,
}
"""Exit codes by verdict. 1 also means that the trace cannot be read, 2 that the command was used wrongly."""

TROUBLE = frozenset({RunVerdict.DEADLOCKED, RunVerdict.LIVELOCKED, RunVerdict.STALLED, RunVerdict.STARVED})
"""Verdicts that a run's outcome does not make irrelevant: they explain it."""


NEVER_BEGAN = "the run ended before it had begun, and no process runs in its directory: nothing was trained"
START_AGAIN = "read the last lines of its output; the same command starts it again"


@dataclass(frozen=True, kw_only=True)
class Explanation(Finding):
    """A finding, with the situation that it is about."""

    situation: Situation

    @cached_property
    def failures(self) -> list[DataFailures]:
        """Why verdicts are missing, the most frequent kind first."""
        return failures_of(self.situation)

    @property
    def root(self) -> str:
        """What everything else waits for."""
        return self.waits_for[-1]

    def as_json(self) -> dict[str, Any]:
        situation, moment = self.situation, self.situation.moment
        ended, resumes_from = situation.ended, newest_checkpoint(situation)
        return {
            "verdict": self.verdict.value,
            "before": None if self.before is None else self.before.value,
            "step": situation.step,
            "selected": situation.state.step.selected,
            "charged": situation.charged,
            "size": situation.limits.size,
            "waits_for": list(self.waits_for),
            "root": self.root,
            "advice": self.advice,
            "proof": list(self.proof),
            "failures": [asdict(found) for found in self.failures],
            "restart": situation.restart,
            "status": status(moment.core.state) if ended is None else ended.status,
            "error": None if ended is None else ended.error,
            "model": None if ended is None else ended.model,
            "resumes_from": None if resumes_from is None else str(resumes_from),
            "seq": moment.seq,
            "unix_s": round(moment.unix_s, 3),
            "silent_s": round(situation.now_s - moment.monotonic_s, 3),
        }


def explain(trace: TraceFile, look: Look, *, seq: int | None = None, unix_s: float | None = None) -> Explanation:
    """Explain a run after record `seq`, at a wall time, or after its last record.

    `unix_s` is the time at which ages are measured; later records do not count. Raises TraceUnreadable if the trace is
    damaged or does not reach back that far, and ConfigError if its custom sampler cannot be loaded.
    """
    situation = situation_at(trace, look, seq=seq, unix_s=unix_s)
    return _explanation(_find(situation), situation)


def explain_now(trace: TraceFile, look: Look) -> Explanation:
    """Explain where a run stands now, or how it ended. Raises the errors of `explain`.

    A trace in a run's directory that nobody closed is of a killed run, if no process runs there (`is_left`). A run that
    was interrupted while it was restarted has that in no trace (`restart_file`).
    """
    directory = trace.path.parent
    if (interrupt := interrupt_in(trace.path)) is not None:
        situation = situation_at(trace, look, seq=None, unix_s=None)
        model = None if situation.ended is None else situation.ended.model
        ended = RunEnded("interrupted", interrupt.error, situation.step, situation.vitals.checkpoint, model)
        return _explanation_of_end(replace(situation, ended=ended))
    if not (is_open(trace) and is_left(directory)):
        return explain(trace, look, unix_s=time.time() if is_open(trace) else None)
    situation = situation_at(trace, look, seq=None, unix_s=None)
    if situation.ended is None and situation.begun:
        last = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(situation.moment.unix_s))
        error = f"it was killed: no process runs in {directory}, and its last record is of {last}"
        ended = RunEnded("failed", error, situation.step, situation.vitals.checkpoint, None)
        return _explanation_of_end(replace(situation, ended=ended))
    return _explanation(_find(situation), situation)


def _explanation_of_end(situation: Situation) -> Explanation:
    """Of a run whose end its own processes did not record."""
    finding = over(situation, "", _trouble(situation))
    advice = f"{_go_on(situation, situation.trace.path.parent)}; {resumes(situation)}"
    return _explanation(replace(finding, advice=advice), situation)


def _go_on(situation: Situation, directory: Path) -> str:
    if newest_checkpoint(situation) is None:
        return "start it again in another directory, and set checkpointing.every_steps lower"
    return f"evenstep train --output {shlex.quote(str(directory))} --resume"


def _explanation(found: Finding, situation: Situation) -> Explanation:
    return Explanation(
        found.verdict, found.waits_for, found.advice, proof=found.proof, before=found.before, situation=situation
    )


def _find(situation: Situation) -> Finding:
    if situation.ended is not None:
        return over(situation, _ended_by(situation), _trouble(situation))
    if not situation.begun:
        if is_left(situation.trace.path.parent):
            return Finding(RunVerdict.FAILED, (NEVER_BEGAN,), START_AGAIN)
        said = "the run has not begun: its actors are being started, or its first validation is under way"
        return Finding(RunVerdict.HEALTHY, (said,), "nothing yet; ask again once it has begun")
    return _going_on(situation) if situation.running else _at_its_end(situation)


def _at_its_end(situation: Situation) -> Finding:
    """All steps are closed, and the outcome is not recorded: the run is saved and measured."""
    idle = seconds(situation.now_s - situation.moment.monotonic_s)
    said = f"all steps are closed; the model is being saved, or measured for the last time (last record {idle} ago)"
    return Finding(RunVerdict.HEALTHY, (said,), "nothing yet; the outcome is recorded when that is done")


def _going_on(situation: Situation) -> Finding:
    """What is found in a state in which the run is not over."""
    finding = _impossible(situation) or stalled(situation) or starved(situation) or waiting(situation)
    return Finding(finding.verdict, (_head(situation), *finding.waits_for), finding.advice, finding.proof)


def _trouble(situation: Situation) -> Finding | None:
    """What was wrong in the state in which a run ended."""
    if situation.running:
        return _going_on(situation) if situation.begun else None
    return starved(situation) if isinstance(situation.stopped_by, BelowFloor | SearchExceeded) else None


def _ended_by(situation: Situation) -> str:
    """The limit that a completed run reached, and how many prompts it left over."""
    left_over = f"{counted(situation.state.sheet.leftover, 'prompt')} left over"
    if 0 <= situation.limits.max_steps <= situation.step:
        return f"grpo.max_num_steps is {situation.limits.max_steps} (X3), {left_over}"
    epochs = situation.trace.header["config"]["grpo"]["max_num_epochs"]
    return f"its data is used up, with grpo.max_num_epochs {epochs} (X1), {left_over}"


def _head(situation: Situation) -> str:
    state, limits = situation.state, situation.limits
    step, chosen = situation.step, state.step.selected
    made_up = f"step {step} has {chosen} selected and {situation.charged} charged of {limits.size}"
    match state.trainer.status:
        case TrainerState.TRAINING:
            return f"{made_up}; the trainer has a chunk of it, since {_since(situation)}"
        case TrainerState.FINISHING:
            return f"{made_up}; the trainer takes its optimizer step, since {_since(situation)}"
        case TrainerState.SYNCING:
            return f"step {step - 1} is closed; version {step} is being synced, since {_since(situation)}"
    return (
        f"{made_up} and waits for {situation.want} more, at least {situation.least} of them eligible at once under "
        f"{situation.sampler}, since {_since(situation)}"
    )


def _since(situation: Situation) -> str:
    return seconds(situation.age_s(situation.vitals.trainer_since_s))


def _impossible(situation: Situation) -> Finding | None:
    state = situation.state
    if status(state) == "deadlocked":
        cause = cause_of(situation)
        return Finding(RunVerdict.DEADLOCKED, cause.chain, cause.advice, proof_of(situation))
    outlook = situation.outlook
    if outlook.dead_end is None or outlook.closes:
        return None
    stuck = replace(situation, state=outlook.dead_end)
    cause = cause_of(stuck)
    tried = (
        f"of all {outlook.states:,} states that can be reached from here, none closes step {situation.step}"
        if outlook.closes is False
        else f"no continuation among the first {outlook.states:,} states closes step {situation.step}"
    )
    proof = (
        tried,
        f"if all groups in flight ({state.sheet.in_flight}) finish and are kept, the run gets stuck here:",
        *proof_of(stuck),
    )
    return Finding(RunVerdict.LIVELOCKED, cause.chain, cause.advice, proof)


def checkpoints_of(situation: Situation) -> Path:
    """The folder of the run's checkpoints: next to the trace, or the one that its process last wrote to."""
    near = situation.trace.path.absolute().parent / CHECKPOINTS
    written = situation.vitals.checkpoint
    return near if near.is_dir() or written is None else Path(written).parent


def newest_checkpoint(situation: Situation) -> Path | None:
    """The newest checkpoint that has all its files; None if none has. `--resume` also checks their contents."""
    return next((path for path in list_checkpoints(checkpoints_of(situation)) if looks_whole(path)), None)


def resumes(situation: Situation) -> str:
    """Which checkpoint `--resume` takes now, in one sentence."""
    newest = newest_checkpoint(situation)
    if newest is None:
        return f"there is no whole checkpoint in {checkpoints_of(situation)}, so --resume has nothing to continue from"
    return f"--resume continues from {newest}, after {counted(step_of(newest), 'step')}"


def left(situation: Situation) -> str | None:
    """Where the run's model is, in one sentence; None if it saved none."""
    if situation.ended is None or situation.ended.model is None:
        return None
    model = Path(situation.ended.model)
    return f"the model is in {model}" if model.is_dir() else f"the model was saved in {model}, which is gone"


def over(situation: Situation, completed_by: str, trouble: Finding | None) -> Finding:
    """The finding of a run that is over: its outcome and error, then what was wrong before (`trouble`)."""
    ended = situation.ended
    assert ended is not None, "the run is over"
    verdict = RunVerdict(ended.status)
    if verdict is RunVerdict.COMPLETED:
        return Finding(verdict, (f"{ended.said} and waits for nothing: {completed_by}",), "nothing")
    advice = _remedy(situation) if ended.error is not None else "nothing, if this was wanted"
    if trouble is None or trouble.verdict not in TROUBLE:
        return Finding(verdict, (ended.said,), f"{advice}; {resumes(situation)}")
    if verdict is not RunVerdict.FAILED:
        advice = trouble.advice
    chain = (ended.said, f"before that it was {trouble.verdict.value}: {trouble.waits_for[0]}", *trouble.waits_for[1:])
    return Finding(verdict, chain, f"{advice}; {resumes(situation)}", trouble.proof, trouble.verdict)


def _remedy(situation: Situation) -> str:
    """What to change after a stop or a failure."""
    if not isinstance(situation.stopped_by, BudgetExceeded):
        return "what the error says"
    limits = situation.limits
    if situation.state.budgets.skipped > limits.max_skipped:
        option, value = "max_skipped_prompts", limits.max_skipped
    else:
        option, value = "max_consecutive_dropped_prompts", limits.max_consecutive_dropped
    return f"mend what the last failure names, or raise async_rl.rollout_failure.{option}, which is {value}"
