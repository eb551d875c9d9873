"""The vitals: since when and where everything runs, and how long things took lately. The core knows no times.

They are a fold over the records. The writer puts them into every snapshot record, so that a reader can start there.
Times are seconds on the trace's monotonic clock.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from fsm.core import AppliedEvent
from fsm.effects import AbortRollout, FinishStep, StartBackoff, StartRollout, SyncWeights, TrainChunk
from fsm.events import Attempt, BackoffOver, Begin, ChunkTrained, GroupFailed, GroupFinished, StepFinished, SyncFinished
from fsm.rules import changes
from runtime.metrics.step_record import StepRecord
from runtime.trace import notes
from runtime.trace.kinds import Json
from runtime.trace.notes import Note, RunEnded

RECENT = 64
"""How many finished groups are remembered."""
CALL_BEGINS: Mapping[type[Any], str] = {TrainChunk: "accumulate", FinishStep: "finish_step", SyncWeights: "sync"}
"""By effect, the call that it starts."""
CALL_ENDS: Mapping[type[Any], str] = {ChunkTrained: "accumulate", StepFinished: "finish_step", SyncFinished: "sync"}
"""By event, the call that it ends."""


class RunningAttempt(NamedTuple):
    """A running attempt."""

    attempt: Attempt
    slot: int
    start_weight: int
    started_s: float
    worker: str | None
    """None until a worker gets it."""


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
    """Of its last death."""


class FinishedGroup(NamedTuple):
    """A finished group, kept or filtered."""

    prompt: int
    age_s: float
    """Time from the start of its attempt."""
    verdict: str
    """all_right, all_wrong or mixed; unknown until its GroupReceived note."""
    filtered: bool


class Vitals:
    """All that runs, since when, and the last results."""

    def __init__(self) -> None:
        self.rollouts: dict[int, RunningAttempt] = {}
        """Running attempts by dispatch number, in order of dispatch."""
        self.backoffs: dict[int, Backoff] = {}
        """By prompt."""
        self.workers: dict[str, Worker] = {}
        self.calls: dict[str, tuple[int, float]] = {}
        """Open calls, also those that effects start (`CALL_BEGINS`): their step or version, and since when."""
        self.trainer_since_s = 0.0
        """When the trainer entered its present state."""
        self.step_since_s = 0.0
        """When the step before the open one closed."""
        self.gate_since_s = 0.0
        self.progress_s = 0.0
        """When a group last finished or a step closed (W2)."""
        self.recent: deque[FinishedGroup] = deque(maxlen=RECENT)
        self.late_answers = 0
        self.checkpoint: str | None = None
        """Path of the newest checkpoint that this process wrote."""
        self.ended: RunEnded | None = None

    def transition(self, monotonic_s: float, transition: AppliedEvent) -> None:
        event = transition.event
        kind = type(event)
        if kind is GroupFinished or kind is GroupFailed:
            rollout = self.rollouts.pop(cast(GroupFinished, event).attempt.dispatch, None)
            if kind is GroupFinished:
                self.progress_s = monotonic_s
                filtered = any(type(change) is changes.GroupFiltered for change in transition.changes)
                prompt = cast(GroupFinished, event).attempt.prompt
                age_s = 0.0 if rollout is None else round(monotonic_s - rollout.started_s, 3)
                self.recent.append(FinishedGroup(prompt, age_s, "unknown", filtered))
        elif kind is BackoffOver:
            self.backoffs.pop(cast(BackoffOver, event).attempt.prompt, None)
        elif kind in (Begin, ChunkTrained, StepFinished, SyncFinished):
            self.trainer_since_s = monotonic_s
            self.calls.pop(CALL_ENDS.get(kind, ""), None)
            if kind in (Begin, StepFinished):
                self.progress_s = self.step_since_s = monotonic_s
        for change in transition.changes:
            if type(change) is changes.GateMoved:
                self.gate_since_s = monotonic_s
            elif type(change) is changes.ChunkSelected or type(change) is changes.StepFinishing:
                self.trainer_since_s = monotonic_s
        for effect in transition.effects:
            if type(effect) is StartRollout:
                attempt, slot, _, start_weight = effect
                self.rollouts[attempt.dispatch] = RunningAttempt(attempt, slot, start_weight, monotonic_s, None)
            elif type(effect) is TrainChunk or type(effect) is FinishStep or type(effect) is SyncWeights:
                self.calls[CALL_BEGINS[type(effect)]] = (effect[0], monotonic_s)
            elif type(effect) is StartBackoff:
                self.backoffs[effect.attempt.prompt] = Backoff(effect.attempt, monotonic_s, effect.delay_s)
            elif type(effect) is AbortRollout:
                self.rollouts.pop(effect.attempt.dispatch, None)

    def note(self, monotonic_s: float, note: Note) -> None:
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
                self.workers[worker] = Worker(True, monotonic_s, self._deaths(worker), "")
            case notes.WorkerDied(worker, reason):
                self.workers[worker] = Worker(False, monotonic_s, self._deaths(worker) + 1, reason[:500])
            case notes.AnswerWasLate():
                self.late_answers += 1
            case notes.Checkpointed(_, path):
                self.checkpoint = path
            case RunEnded():
                self.ended = note
            case notes.Validated() | notes.NoProgress() | notes.NotWritten() | notes.TraceClosed() | StepRecord():
                pass  # nothing runs or waits because of these
            case notes.WorkerQuarantined() | notes.ActorRestarted():
                pass  # a WorkerDied follows; nothing waits for the others' restart itself

    def _deaths(self, worker: str) -> int:
        return self.workers[worker].deaths if worker in self.workers else 0

    def as_json(self) -> Json:
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
