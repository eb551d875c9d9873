"""What the runtime knows and the core doesn't, as notes of the trace. A note happened at the time of its record.

A note is a NamedTuple of plain values; the trace holds its fields as an array, in order. `StepRecord`, the metrics of
one closed step, is a note too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from fsm.events import Attempt
from runtime.metrics.step_record import StepRecord
from runtime.wording import counted

if TYPE_CHECKING:
    from runtime.groups import Evaluation, GroupReceipt

Status = Literal["completed", "stopped", "failed", "interrupted"]
"""How a run ended (W3): at its limit; by a rule, a budget or the watchdog; by an error; by a signal."""
EXIT_CODES: Mapping[Status, int] = {"completed": 0, "stopped": 1, "failed": 1, "interrupted": 130}
"""Exit codes of `evenstep train` and `evenstep explain`."""


class AttemptsPlaced(NamedTuple):
    """A generation worker got these attempts, in this order."""

    worker: str
    attempts: tuple[Attempt, ...]


class WorkerStarted(NamedTuple):
    """A generation worker has started and runs the current weights."""

    worker: str


class WorkerDied(NamedTuple):
    """A generation worker died and is being restarted."""

    worker: str
    reason: str


class CallBegan(NamedTuple):
    """The runtime called the trainer or the generation workers for something that no effect of the core asks for.

    (TrainChunk, FinishStep and SyncWeights are effects. A sync is a publish call, then a load call.)
    """

    call: str
    """checkpoint, publish, load or evaluate."""
    number: int
    """The version that the call concerns."""


class CallEnded(NamedTuple):
    """The call was answered. A call that fails has no CallEnded: the run ends with its error."""

    call: str
    number: int


class GroupReceived(NamedTuple):
    """More about the group of the GroupFinished in the record before, which has the tokens and the rewards."""

    prompt: int
    worker: str
    rollouts: int
    correct: int
    """Rollouts that the verifier accepts."""
    longest: int
    """Tokens of the longest rollout."""
    truncated: int
    """Rollouts that ended at the length limit."""
    end_weight: int
    generation_s: float
    """From the start of the attempt to its last token."""
    reward_s: float

    @property
    def verdict(self) -> str:
        """all_right, all_wrong or mixed."""
        if self.correct == self.rollouts:
            return "all_right"
        return "mixed" if self.correct else "all_wrong"


class AnswerWasLate(NamedTuple):
    """The core refused an answer for an attempt that was over (D2)."""


class Validated(NamedTuple):
    """A validation ended."""

    step: int
    accuracy: float
    reward_mean: float
    rollouts: int
    of_set: str = "validation"
    """The set's name; an older trace has one set, without a name."""
    without_verdict: int = 0
    """Rollouts whose verifier failed; they count as wrong."""
    failures: tuple[str, ...] = ()
    """Why they have none, one of each kind."""


class Checkpointed(NamedTuple):
    """A checkpoint was written."""

    step: int
    path: str


class NoProgress(NamedTuple):
    """The watchdog saw no progress; the run continues (W2)."""

    idle_s: float
    waits_for: str


class NotWritten(NamedTuple):
    """The disk refused a file; the run continues without it."""

    path: str
    reason: str


class RunEnded(NamedTuple):
    """The run's outcome (W3), as its log, summary and exit code also state it."""

    status: Status
    error: str | None
    """Why the run stopped or failed, the first cause first; of an interrupted one, its time limit if that ended it."""
    step: int
    """Optimizer steps finished."""
    checkpoint: str | None
    """The newest checkpoint that this process wrote."""
    model: str | None

    @property
    def said(self) -> str:
        """The outcome in one sentence, without checkpoint and model."""
        happened = {"completed": "is completed", "failed": "failed"}.get(self.status, f"was {self.status}")
        sentence = f"the run {happened} after {counted(self.step, 'step')}"
        return sentence if self.error is None else f"{sentence}: {self.error}"


class TraceClosed(NamedTuple):
    """The process closed its trace: no record follows. Without it, the process still runs or was killed."""


class WorkerQuarantined(NamedTuple):
    """A generation worker was taken out of service; a WorkerDied follows, since it is killed and restarted."""

    worker: str
    reason: str


class ActorRestarted(NamedTuple):
    """A reward worker or the group store died, or was killed since it did not answer; Ray restarts it."""

    actor: str
    reason: str


Note = (
    AttemptsPlaced | WorkerStarted | WorkerDied | CallBegan | CallEnded | GroupReceived | AnswerWasLate
    | Validated | Checkpointed | NoProgress | NotWritten | RunEnded | TraceClosed | StepRecord
    | WorkerQuarantined | ActorRestarted
)  # fmt: skip


def note_of_receipt(receipt: "GroupReceipt") -> GroupReceived:
    """Sum up the rollouts of a finished group."""
    return GroupReceived(
        prompt=receipt.prompt,
        worker=receipt.worker,
        rollouts=len(receipt.rewards),
        correct=sum(receipt.correct),
        longest=max(receipt.completion_tokens),
        truncated=receipt.finished.count(False),
        end_weight=receipt.end_weight,
        generation_s=round(receipt.generation_s, 3),
        reward_s=round(receipt.reward_s, 3),
    )


def note_of_evaluation(step: int, name: str, evaluation: "Evaluation") -> Validated:
    """The figures of a set."""
    return Validated(
        step, evaluation.accuracy, evaluation.mean_reward, len(evaluation.rollouts), name, len(evaluation.failures),
        evaluation.failures_of_each_kind,
    )  # fmt: skip
