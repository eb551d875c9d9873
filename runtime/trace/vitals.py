"""The vitals: what a reader must know beside the core's state to say since when, where, and what is usual.

A fold over records. The writer keeps one and puts it into every snapshot record, so that a reader who starts from
there knows what happened before. Times are seconds on the trace's monotonic clock.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, cast

from fsm.core import AppliedEvent
from fsm.effects import AbortRollout, FinishStep, StartBackoff, StartRollout, SyncWeights, TrainChunk
from fsm.events import (
    Attempt,
    BackoffOver,
    Begin,
    ChunkTrained,
    GroupFailed,
    GroupFinished,
    StepFinished,
    SyncFinished,
)
from fsm.rules import changes
from runtime.metrics.step_record import StepRecord
from runtime.trace import notes
from runtime.trace.kinds import Json
from runtime.trace.notes import Note, RunEnded

RECENT = 64
"""Finished groups that "usual" is about."""

_CALLS = {TrainChunk: "accumulate", FinishStep: "finish_step", SyncWeights: "sync"}
_ENDS = {ChunkTrained: "accumulate", StepFinished: "finish_step", SyncFinished: "sync"}


class RunningAttempt(NamedTuple):
    """An attempt that runs."""

    attempt: Attempt
    slot: int
    start_weight: int
    started_s: float
    worker: str | None
    """None while it is not placed."""


class Backoff(NamedTuple):
    """A group between two attempts."""

    attempt: Attempt
    since_s: float
    delay_s: float


class Worker(NamedTuple):
    """A generation worker."""

    alive: bool
    since_s: float
    deaths: int
    reason: str
    """Why it died last."""


class FinishedGroup(NamedTuple):
    """A group that finished, kept or filtered."""

    prompt: int
    age_s: float
    """From the start of its attempt."""
    verdict: str
    """all_right, all_wrong or mixed; unknown until it is received."""
    filtered: bool


class Vitals:
    """Everything that runs, since when, and how it went of late."""

    def __init__(self) -> None:
        self.rollouts: dict[int, RunningAttempt] = {}
        """Attempts that run, by dispatch number, in order of dispatch."""
        self.backoffs: dict[int, Backoff] = {}
        """By prompt."""
        self.workers: dict[str, Worker] = {}
        self.calls: dict[str, tuple[int, float]] = {}
        """Calls that are open, those of the core's effects (accumulate, finish_step, sync) among them: the step or
        version that they are about, and since when."""
        self.trainer_since_s = 0.0
        """When the trainer last went from assembling, training, finishing or syncing to another of these."""
        self.step_since_s = 0.0
        """When the open step's predecessor closed."""
        self.gate_since_s = 0.0
        self.progress_s = 0.0
        """When a group last finished or a step closed (W2)."""
        self.recent: deque[FinishedGroup] = deque(maxlen=RECENT)
        self.late_answers = 0
        self.checkpoint: str | None = None
        """The path of the newest checkpoint that this process wrote."""
        self.ended: RunEnded | None = None
        """The outcome, once there is one."""

    def transition(self, monotonic_s: float, transition: AppliedEvent) -> None:
        """One applied event."""
        event = transition.event
        kind = type(event)
        if kind is GroupFinished or kind is GroupFailed:
            rollout = self.rollouts.pop(cast(GroupFinished, event).attempt.dispatch, None)
            if kind is GroupFinished:
                self.progress_s = monotonic_s
                filtered = any(type(move) is changes.GroupFiltered for move in transition.changes)
                prompt = cast(GroupFinished, event).attempt.prompt
                age_s = 0.0 if rollout is None else round(monotonic_s - rollout.started_s, 3)
                self.recent.append(FinishedGroup(prompt, age_s, "unknown", filtered))
        elif kind is BackoffOver:
            self.backoffs.pop(cast(BackoffOver, event).attempt.prompt, None)
        elif kind in (Begin, ChunkTrained, StepFinished, SyncFinished):
            self._turn(monotonic_s, event)
        for move in transition.changes:
            if type(move) is changes.GateMoved:
                self.gate_since_s = monotonic_s
            elif type(move) is changes.ChunkSelected or type(move) is changes.StepFinishing:
                self.trainer_since_s = monotonic_s
        for effect in transition.effects:
            if type(effect) is StartRollout:
                attempt, slot, _, start_weight = effect
                self.rollouts[attempt.dispatch] = RunningAttempt(attempt, slot, start_weight, monotonic_s, None)
            elif type(effect) is TrainChunk or type(effect) is FinishStep or type(effect) is SyncWeights:
                self.calls[_CALLS[type(effect)]] = (effect[0], monotonic_s)
            elif type(effect) is StartBackoff:
                self.backoffs[effect.attempt.prompt] = Backoff(effect.attempt, monotonic_s, effect.delay_s)
            elif type(effect) is AbortRollout:
                self.rollouts.pop(effect.attempt.dispatch, None)

    def _turn(self, monotonic_s: float, event: Any) -> None:
        self.trainer_since_s = monotonic_s
        self.calls.pop(_ENDS.get(type(event), ""), None)
        if type(event) in (Begin, StepFinished):
            self.progress_s = self.step_since_s = monotonic_s

    def note(self, monotonic_s: float, note: Note) -> None:
        """One note."""
        match note:
            case notes.AttemptsPlaced(worker, attempts):
                for attempt in attempts:
                    if attempt.dispatch in self.rollouts:
                        self.rollouts[attempt.dispatch] = self.rollouts[attempt.dispatch]._replace(worker=worker)
            case notes.GroupReceived():
                if self.recent and self.recent[-1].prompt == note.prompt:
                    self.recent[-1] = self.recent[-1]._replace(verdict=note.verdict)
            case notes.CallBegan(call, number):
                self.calls[call] = (number, monotonic_s)
            case notes.CallEnded(call):
                self.calls.pop(call, None)
            case notes.WorkerStarted(worker):
                before = self.workers.get(worker)
                self.workers[worker] = Worker(True, monotonic_s, before.deaths if before else 0, "")
            case notes.WorkerDied(worker, reason):
                before = self.workers.get(worker)
                self.workers[worker] = Worker(False, monotonic_s, (before.deaths if before else 0) + 1, reason[:500])
            case notes.AnswerWasLate():
                self.late_answers += 1
            case notes.Checkpointed(_, path):
                self.checkpoint = path
            case RunEnded():
                self.ended = note
            case notes.Validated() | notes.NoProgress() | notes.NotWritten() | notes.TraceClosed() | StepRecord():
                pass  # nothing that waits

    def as_json(self) -> Json:
        """Plain JSON; `from_json` reads it."""
        return {
            "rollouts": [[list(rollout.attempt), *rollout[1:]] for rollout in self.rollouts.values()],
            "backoffs": [[list(backoff.attempt), *backoff[1:]] for backoff in self.backoffs.values()],
            "workers": {name: list(worker) for name, worker in self.workers.items()},
            "calls": {call: list(since) for call, since in self.calls.items()},
            "trainer_since_s": self.trainer_since_s,
            "step_since_s": self.step_since_s,
            "gate_since_s": self.gate_since_s,
            "progress_s": self.progress_s,
            "recent": [list(finished) for finished in self.recent],
            "late_answers": self.late_answers,
            "checkpoint": self.checkpoint,
            "ended": None if self.ended is None else list(self.ended),
        }


def from_json(saved: Json) -> Vitals:
    """The vitals that `as_json` wrote."""
    vitals = Vitals()
    rollouts = [RunningAttempt(Attempt(*attempt), *rest) for attempt, *rest in saved["rollouts"]]
    vitals.rollouts = {rollout.attempt.dispatch: rollout for rollout in rollouts}
    backoffs = [Backoff(Attempt(*attempt), *rest) for attempt, *rest in saved["backoffs"]]
    vitals.backoffs = {backoff.attempt.prompt: backoff for backoff in backoffs}
    vitals.workers = {name: Worker(*worker) for name, worker in saved["workers"].items()}
    vitals.calls = {call: (number, since_s) for call, (number, since_s) in saved["calls"].items()}
    vitals.trainer_since_s, vitals.step_since_s = saved["trainer_since_s"], saved["step_since_s"]
    vitals.gate_since_s, vitals.progress_s = saved["gate_since_s"], saved["progress_s"]
    vitals.recent.extend(FinishedGroup(*finished) for finished in saved["recent"])
    vitals.late_answers = saved["late_answers"]
    vitals.checkpoint = saved.get("checkpoint")  # a trace of an older evenstep has neither this nor `ended`
    ended = saved.get("ended")
    vitals.ended = None if ended is None else RunEnded(*ended)
    return vitals
