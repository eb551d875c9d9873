"""What the runtime knows and the core doesn't, as notes of the trace. Times are those of their records.

Every note is a NamedTuple of plain values, and is written as an array of its fields, in order. `StepRecord` (the
metrics of one closed step) is a note too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from fsm.events import Attempt
from runtime.metrics.step_record import StepRecord

if TYPE_CHECKING:
    from runtime.groups import Evaluation, GroupReceipt

Status = Literal["completed", "stopped", "failed", "interrupted"]
"""How a run ended (W3): by itself; by a rule, a budget or the watchdog; by an error or a dead process; by a signal."""
EXIT_CODES: Mapping[Status, int] = {"completed": 0, "stopped": 1, "failed": 1, "interrupted": 130}
"""Of `evenstep train` and `evenstep explain`."""


class AttemptsPlaced(NamedTuple):
    """A worker was given these attempts, in this order."""

    worker: str
    attempts: tuple[Attempt, ...]


class WorkerStarted(NamedTuple):
    """A generation worker is open and runs the current weights."""

    worker: str


class WorkerDied(NamedTuple):
    """A generation worker died, and is made anew."""

    worker: str
    reason: str


class CallBegan(NamedTuple):
    """The runtime asked something of the trainer or of the fleet that the core doesn't know of.

    What the core asks for is in its effects: TrainChunk, FinishStep and SyncWeights. A sync is publish, then load.
    """

    call: str
    """checkpoint, publish, load or evaluate."""
    number: int
    """The version that it is about."""


class CallEnded(NamedTuple):
    """It was answered. A call that fails has no end: the run ends with its error."""

    call: str
    number: int


class GroupReceived(NamedTuple):
    """What a worker says of a group that it finished, beside what its GroupFinished says, which is the record before:
    that has the sum of the completion tokens, and the rewards' mean and standard deviation (`GroupRecord`)."""

    prompt: int
    worker: str
    rollouts: int
    correct: int
    """Rollouts that the verifier counts as right."""
    longest: int
    """Tokens of the longest rollout."""
    truncated: int
    """Rollouts that the length limit cut off."""
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
    """An answer came for an attempt that was over, and was refused (D2)."""


class Validated(NamedTuple):
    """A validation is done."""

    step: int
    accuracy: float
    reward_mean: float
    rollouts: int


class Checkpointed(NamedTuple):
    """A checkpoint is written."""

    step: int
    path: str


class NoProgress(NamedTuple):
    """The watchdog saw no progress, and the run goes on (W2)."""

    idle_s: float
    waits_for: str


class NotWritten(NamedTuple):
    """The disk refused a file, and the run goes on without it."""

    path: str
    reason: str


class RunEnded(NamedTuple):
    """The run's outcome (W3), the same that its log, summary and exit code tell."""

    status: Status
    error: str | None
    """Why it was stopped or failed, the first cause first."""
    step: int
    """Optimizer steps done."""
    checkpoint: str | None
    """The newest checkpoint that this process wrote."""
    model: str | None
    """The directory of the final model."""

    @property
    def said(self) -> str:
        """In one sentence, without what was kept."""
        happened = {"completed": "is completed", "failed": "failed"}.get(self.status, f"was {self.status}")
        sentence = f"the run {happened} after {self.step} steps"
        return sentence if self.error is None else f"{sentence}: {self.error}"


class TraceClosed(NamedTuple):
    """The process ended in good order; no record follows. Without it, the process was killed or still runs."""


Note = (
    AttemptsPlaced
    | WorkerStarted
    | WorkerDied
    | CallBegan
    | CallEnded
    | GroupReceived
    | AnswerWasLate
    | Validated
    | Checkpointed
    | NoProgress
    | NotWritten
    | RunEnded
    | TraceClosed
    | StepRecord
)


def note_of_receipt(receipt: GroupReceipt) -> GroupReceived:
    """A finished group, its rollouts added up."""
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


def note_of_evaluation(step: int, evaluation: Evaluation) -> Validated:
    """A validation, in short."""
    return Validated(step, evaluation.accuracy, evaluation.mean_reward, evaluation.rollouts)
