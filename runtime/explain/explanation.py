"""The verdict on a run at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fsm.errors import BelowFloor, SearchExceeded
from fsm.explain import status
from fsm.machines.trainer import TrainerState
from runtime.explain.dead_ends import cause_of, proof_of
from runtime.explain.ends import newest_checkpoint, over
from runtime.explain.finding import Finding, RunVerdict
from runtime.explain.situation import Look, Situation, situation_at
from runtime.explain.usual import seconds
from runtime.explain.waits import stalled, starved, waiting
from runtime.trace.notes import EXIT_CODES
from runtime.trace.reader import TraceFile

EXIT = {
    **{RunVerdict(status): code for status, code in EXIT_CODES.items()},
    RunVerdict.HEALTHY: 0,
    RunVerdict.SLOW: 0,
    RunVerdict.STARVED: 4,
    RunVerdict.STALLED: 5,
    RunVerdict.LIVELOCKED: 6,
    RunVerdict.DEADLOCKED: 7,
}
"""Exit codes by verdict, those of outcomes as of `evenstep train`; 1 is also for a file that can't be read, 2 for wrong
use."""


@dataclass(frozen=True)
class Explanation:
    """What a step waits for, down to the root, and what to change."""

    verdict: RunVerdict
    step: int
    selected: int
    charged: int
    size: int
    waits_for: tuple[str, ...]
    """The chain of what waits for what; the last is the root."""
    proof: tuple[str, ...]
    advice: str
    before: RunVerdict | None
    """How a run that is over stood before, where something was wrong with it."""
    situation: Situation

    @property
    def root(self) -> str:
        """What everything waits for in the end."""
        return self.waits_for[-1]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        situation, moment = self.situation, self.situation.moment
        ended, resumes_from = situation.ended, newest_checkpoint(situation)
        return {
            "verdict": self.verdict.value,
            "before": None if self.before is None else self.before.value,
            "step": self.step,
            "selected": self.selected,
            "charged": self.charged,
            "size": self.size,
            "waits_for": list(self.waits_for),
            "root": self.root,
            "advice": self.advice,
            "proof": list(self.proof),
            "status": status(moment.core.state) if ended is None else ended.status,
            "error": None if ended is None else ended.error,
            "model": None if ended is None else ended.model,
            "resumes_from": None if resumes_from is None else str(resumes_from),
            "seq": moment.seq,
            "unix_s": round(moment.unix_s, 3),
            "silent_s": round(situation.now_s - moment.monotonic_s, 3),
        }


def explain(trace: TraceFile, look: Look, *, seq: int | None = None, unix_s: float | None = None) -> Explanation:
    """Explain a run as of record `seq`, as of a wall time, or as of its last record.

    Args:
        trace: Opened.
        look: `specs.checker.closing.outlook`.
        seq: The last record that counts.
        unix_s: The time at which ages are measured; records after it do not count.

    Raises:
        TraceUnreadable: The trace is damaged, or does not reach back that far.
        ConfigError: Its custom sampler cannot be loaded.
    """
    return explained(situation_at(trace, look, seq=seq, unix_s=unix_s))


def explained(situation: Situation) -> Explanation:
    """Explain a situation."""
    finding = _find(situation)
    return Explanation(
        finding.verdict,
        situation.step,
        situation.state.step.selected,
        situation.charged,
        situation.limits.size,
        finding.chain,
        finding.proof,
        finding.advice,
        finding.before,
        situation,
    )


def _find(situation: Situation) -> Finding:
    if situation.ended is not None:
        return over(situation, _ended_by(situation), _trouble(situation))
    if not situation.begun:
        said = "the run has not begun: its actors are being made"
        return Finding(RunVerdict.HEALTHY, (said,), "nothing yet; look again once it has begun")
    return _going_on(situation)


def _going_on(situation: Situation) -> Finding:
    """Of a state in which the run is not over."""
    finding = _impossible(situation) or stalled(situation) or starved(situation) or waiting(situation)
    return Finding(finding.verdict, (_head(situation), *finding.chain), finding.advice, finding.proof)


def _trouble(situation: Situation) -> Finding | None:
    """What is found of the state that a run ended in."""
    if situation.running:
        return _going_on(situation) if situation.begun else None
    return starved(situation) if isinstance(situation.stopped_by, BelowFloor | SearchExceeded) else None


def _ended_by(situation: Situation) -> str:
    """The limit that a completed run came to, and what it left over."""
    left_over = f"{situation.state.tally.leftover} prompts left over"
    if 0 <= situation.limits.max_steps <= situation.step:
        return f"grpo.max_num_steps is {situation.limits.max_steps} (X3), {left_over}"
    epochs = situation.trace.header["config"]["grpo"]["max_num_epochs"]
    return f"its data is used up, with grpo.max_num_epochs {epochs} (X1), {left_over}"


def _head(situation: Situation) -> str:
    """What the step waits for."""
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
    """Deadlocked, or livelocked."""
    state = situation.state
    if status(state) == "deadlocked":
        cause = cause_of(situation, state)
        return Finding(RunVerdict.DEADLOCKED, cause.chain, cause.advice, proof_of(situation, state))
    outlook = situation.outlook
    if outlook.dead_end is None or outlook.closes:
        return None
    cause = cause_of(situation, outlook.dead_end)
    tried = (
        f"of all {outlook.states:,} states that can be reached from here, none closes step {situation.step}"
        if outlook.closes is False
        else f"no continuation among the first {outlook.states:,} states closes step {situation.step}"
    )
    proof = (
        tried,
        f"if all that is in flight ({state.tally.in_flight}) is answered and kept, the run ends up so:",
        *proof_of(situation, outlook.dead_end),
    )
    return Finding(RunVerdict.LIVELOCKED, cause.chain, cause.advice, proof)
