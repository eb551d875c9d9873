"""Notes of the runtime as marks, calls and metrics: workers start and die, stalls, validations, checkpoints."""

from collections.abc import Mapping
from enum import IntEnum

from fsm.core import AppliedEvent
from fsm.rules import changes
from fsm.rules.changes import Change
from runtime.metrics.step_record import StepRecord
from runtime.report.columns import NOT_YET, Columns, Texts
from runtime.trace import notes
from runtime.trace.notes import Note
from runtime.wording import counted


class Kind(IntEnum):
    """The kind of a mark."""

    WORKER_STARTED = 0
    WORKER_DIED = 1
    NO_PROGRESS = 2
    VALIDATED = 3
    CHECKPOINTED = 4
    RESUMED = 5
    STOPPED = 6
    COMPLETED = 7
    CLOSED = 8
    FAILED = 9
    INTERRUPTED = 10
    NOT_WRITTEN = 11
    WORKER_QUARANTINED = 12
    ACTOR_RESTARTED = 13


KINDS = [kind.name.lower().replace("_", " ") for kind in Kind]
"""Names by value of the column `kind`."""
MARK_COLUMNS: Mapping[str, str] = {"t": "I", "kind": "B", "text": "I"}
CALL_COLUMNS: Mapping[str, str] = {"call": "I", "number": "i", "begun": "I", "ended": "I"}
"""`call` is the number of its name's text; `ended` is NOT_YET while it is open."""
_ENDS = frozenset({Kind.STOPPED, Kind.COMPLETED, Kind.FAILED, Kind.INTERRUPTED})
_MARKED: Mapping[type[Change], tuple[Kind, str]] = {
    changes.RunResumed: (Kind.RESUMED, "groups in flight start again (C2)"),
    changes.RunRegenerated: (Kind.RESUMED, "prompts that are not trained are generated again (C3)"),
    changes.DataReplaced: (Kind.RESUMED, "prompts of the old data that are not trained are dropped (C3)"),
    changes.RunCompleted: (Kind.COMPLETED, "the run is completed"),
}


class Happenings:
    """Marks, calls and metrics, in order."""

    def __init__(self, texts: Texts) -> None:
        self.marks = Columns(MARK_COLUMNS)
        self.calls = Columns(CALL_COLUMNS)
        self.late_answers = 0
        self.metrics: list[StepRecord] = []
        """One per step, in order."""
        self._texts = texts
        self._ends: set[Kind] = set()
        """Outcomes that are marked."""
        self._open: dict[str, int] = {}
        """Rows of open calls by name."""

    def go_on(self, step: int, ended: int, text: str) -> None:
        """The process ended then, and the next one goes on with this step: `text` says so."""
        self._forget_from(step)
        for row in self._open.values():
            self.calls["ended"][row] = ended
        self._open.clear()
        self._ends.clear()
        self._mark(ended, Kind.RESUMED, text)

    def transition(self, now: int, transition: AppliedEvent) -> None:
        for change in transition.changes:
            if type(change) in _MARKED:
                self._mark(now, *_MARKED[type(change)])
            elif type(change) is changes.RunStopped:
                self._mark(now, Kind.STOPPED, f"{type(change.error).__name__}: {change.error}")

    def note(self, now: int, note: Note) -> None:
        match note:
            case notes.CallBegan(call, number):
                self._open[call] = self.calls.append(self._texts.number(call), number, now, NOT_YET)
            case notes.CallEnded(call):
                row = self._open.pop(call, None)
                if row is not None:
                    self.calls["ended"][row] = now
            case notes.WorkerStarted(worker):
                self._mark(now, Kind.WORKER_STARTED, worker)
            case notes.WorkerDied(worker, reason):
                self._mark(now, Kind.WORKER_DIED, f"{worker}: {reason}")
            case notes.NoProgress(idle_s, waits_for):
                self._mark(now, Kind.NO_PROGRESS, f"for {idle_s:.0f} s: {waits_for}")
            case notes.Validated(step, accuracy, reward_mean, rollouts, name):
                measured = f"accuracy {accuracy:.3f}, reward {reward_mean:.3f}, {counted(rollouts, 'rollout')}"
                self._mark(now, Kind.VALIDATED, f"{name} after {counted(step, 'step')}: {measured}")
            case notes.Checkpointed(step, path):
                self._mark(now, Kind.CHECKPOINTED, f"after {counted(step, 'step')}: {path}")
            case notes.NotWritten(path, reason):
                self._mark(now, Kind.NOT_WRITTEN, f"{path}: {reason}")
            case notes.WorkerQuarantined(worker, reason):
                self._mark(now, Kind.WORKER_QUARANTINED, f"{worker}: {reason}")
            case notes.ActorRestarted(actor, reason):
                self._mark(now, Kind.ACTOR_RESTARTED, f"{actor}: {reason}")
            case notes.RunEnded(status):
                kind = Kind[status.upper()]
                if kind not in self._ends:  # the core's change was marked already
                    self._mark(now, kind, note.said)
            case notes.TraceClosed():
                self._mark(now, Kind.CLOSED, "the process ended in good order")
            case notes.AnswerWasLate():
                self.late_answers += 1
            case StepRecord():
                self._forget_from(note.step)
                self.metrics.append(note)
            case notes.AttemptsPlaced() | notes.GroupReceived():
                pass  # `Attempts` has these

    def _forget_from(self, step: int) -> None:
        """Steps from this one on are done again."""
        while self.metrics and self.metrics[-1].step >= step:
            self.metrics.pop()

    def _mark(self, now: int, kind: Kind, text: str) -> None:
        self.marks.append(now, kind, self._texts.number(text))
        if kind in _ENDS:
            self._ends.add(kind)
