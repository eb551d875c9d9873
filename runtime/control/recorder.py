"""What the pumps tell whoever keeps records: metrics, progress, the end of the run. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fsm.effects import StepClosed
from fsm.events import Attempt
from runtime.files.unwritten import FileNotWritten
from runtime.groups import Evaluation, GroupReceipt
from runtime.training.step_metrics import StepMetrics


class Recorder(Protocol):
    """Takes notes. No method blocks."""

    def received(self, receipt: GroupReceipt) -> None:
        """The group was just taken by the core."""

    def placed(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """A worker is given attempts."""

    def late_answer(self) -> None:
        """An answer came for an attempt that was over (D2)."""

    def worker_busy(self, worker: str, busy_s: float) -> None:
        """How long a worker has generated since it was made."""

    def worker_started(self, worker: str) -> None:
        """A generation worker is open and runs the current weights."""

    def worker_lost(self, worker: str, reason: str) -> None:
        """A generation worker died and is made anew."""

    def call_began(self, call: str, number: int) -> None:
        """Something that the core doesn't know of is asked of the trainer or the fleet (`CallBegan`)."""

    def call_ended(self, call: str, number: int) -> None:
        """It was answered."""

    def trained(self, metrics: StepMetrics) -> None:
        """An optimizer step is done, and the core will be told next."""

    def nothing_trained(self, step: int, rollouts: int) -> None:
        """Overlong filtering left all rollouts of the step, so many, out of the loss."""

    def closed(self, step: StepClosed) -> None:
        """A step is closed."""

    def synced(self, version: int) -> None:
        """Every worker runs the version, and the core knows."""

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """A validation is done."""

    def checkpointed(self, step: int, path: Path) -> None:
        """A checkpoint is written."""

    def not_written(self, error: FileNotWritten) -> None:
        """The disk refused a file that the run can go on without."""

    def said(self, text: str) -> None:
        """Something for the user, which is said once however often it comes."""

    def stalled(self, idle_s: float, waits_for: str) -> None:
        """The watchdog saw no progress (W2)."""

    def dead_end(self, explanation: str) -> None:
        """The run can never go on, and is kept for a debugger (W2)."""
