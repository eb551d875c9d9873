"""What the pumps call: the trainer, the generation workers and the recorder.

The real ones are `TrainerGroup` and `Fleet` (`runtime.actors`) and `RunRecorder`; tests have theirs on an asyncio loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from fsm.effects import StepClosed
from fsm.events import Attempt
from runtime.files import FileNotWritten, Json
from runtime.groups import Evaluation, GroupReceipt
from runtime.trace.notes import Note
from runtime.training.step_metrics import StepMetrics
from runtime.transport.answers import Answer, ChunkReport, Order, Published, Row


class TrainerPort(Protocol):
    """The trainer, one rank or several."""

    async def accumulate(self, step: int, rows: Sequence[tuple[int, Row]], unneeded: Sequence[Row]) -> ChunkReport:
        """Add the gradients of these prompts' groups, in this order; unreadable groups are left out and reported.

        The call also deletes `unneeded`: rows of earlier steps.
        """
        ...

    async def finish_step(self, step: int) -> StepMetrics:
        """Take the optimizer step."""
        ...

    async def publish(self, version: int) -> Published:
        """Make the weights of this version available to the generation workers."""
        ...

    async def checkpoint(self, directory: Path, control: Json, rows: Sequence[tuple[int, Row]], keep: int) -> Path:
        """Write a checkpoint of the trainer, the core's snapshot and the groups of `rows`. Returns its path."""
        ...

    async def save_model(self, directory: Path) -> Path:
        """Write the policy as a Hugging Face directory that replaces `directory`. Returns its path.

        Raises ModelNotSaved if it can't be written; an older model there is unchanged then.
        """
        ...


class FleetPort(Protocol):
    """The generation workers.

    Requests to one worker take effect in the order in which they are made: an abort finds the orders of an earlier
    exchange, and an evaluation runs the weights of an earlier load, none of a later one. Replies come in any order.
    """

    @property
    def workers(self) -> Sequence[str]:
        """Their names; a restarted worker keeps its name."""
        ...

    async def exchange(self, worker: str, orders: Sequence[Order]) -> Sequence[Answer]:
        """Start groups as one submission, perhaps none, and wait for answers to any attempt of the worker.

        Returns at least one answer, unless a later exchange with the same worker takes over the waiting.
        Raises WorkerLost, with the attempts that died with the worker.
        """
        ...

    async def abort(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """Stop attempts; those that are over are skipped."""
        ...

    async def load(self, published: Published) -> None:
        """Return once every worker has confirmed that it runs the published version."""
        ...

    async def evaluate(self, label: str, progressed: Callable[[], None]) -> Evaluation:
        """Held-out accuracy of the weights that the workers run; calls `progressed` after each part."""
        ...


class Recorder(Protocol):
    """Keeps metrics, the trace's notes and the messages to the user. It decides nothing, and no method blocks."""

    def received(self, receipt: GroupReceipt) -> None:
        """The core has just taken the group."""

    def note(self, note: Note) -> None:
        """Keep a note in the trace: placements, calls to the trainer or the fleet, and the like."""

    def late_answer(self) -> None:
        """An answer came for an attempt that was over (D2)."""

    def worker_busy(self, worker: str, busy_s: float) -> None:
        """How long a worker has generated since its process started."""

    def worker_lost(self, worker: str, reason: str) -> None:
        """A generation worker died and is restarted."""

    def trained(self, metrics: StepMetrics) -> None:
        """An optimizer step is done; the core is told next."""

    def nothing_trained(self, step: int, rollouts: int) -> None:
        """Overlong filtering left all rollouts of the step, so many, out of the loss."""

    def closed(self, step: StepClosed) -> None:
        """A step is closed; its record follows when its weights are synced."""

    def synced(self, version: int) -> None:
        """Every worker runs the version, and the core knows."""

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """A validation is done."""

    def checkpointed(self, step: int, path: Path) -> None:
        """A checkpoint is written."""

    def not_written(self, error: FileNotWritten) -> None:
        """The disk refused a file that the run does not depend on."""

    def said(self, text: str) -> None:
        """A line for the user, who sees it once however often it is reported."""

    def stalled(self, idle_s: float, waits_for: str) -> None:
        """The watchdog saw no progress (W2)."""

    def dead_end(self, explanation: str) -> None:
        """The run can never continue, and is kept for a debugger (W2)."""
