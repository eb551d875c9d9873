"""The training pump.

Consumes: TrainChunk and FinishStep.
Waits for: the trainer.
Unblocked by: a chunk accumulated, an optimizer step done.
Produces: ClaimUnreadable, ChunkTrained and StepFinished.
"""

from __future__ import annotations

from fsm.effects import FinishStep, TrainChunk
from fsm.events import ChunkTrained, ClaimUnreadable, StepFinished
from runtime.control import Control
from runtime.ports import TrainerPort
from runtime.pumps.rows import Rows
from runtime.recorder import Recorder


class TrainingPump:
    """Hands chunks to the trainer."""

    def __init__(self, control: Control, trainer: TrainerPort, rows: Rows, recorder: Recorder) -> None:
        self._control = control
        self._trainer = trainer
        self._rows = rows
        self._recorder = recorder

    def train_chunk(self, chunk: TrainChunk) -> None:
        """In the order of selection."""
        self._control.spawn(self._train(chunk), f"chunk {chunk.chunk}")

    def finish_step(self, finish: FinishStep) -> None:
        """See FinishStep."""
        self._control.spawn(self._finish(finish), f"step {finish.step}")

    async def _train(self, chunk: TrainChunk) -> None:
        rows = self._rows.of(group.prompt for group in chunk.groups)
        report = await self._trainer.accumulate(chunk.step, rows, self._rows.take_trained())
        for unreadable in report.unreadable:
            self._control.apply(ClaimUnreadable(unreadable.prompt, unreadable.error))
        self._control.apply(ChunkTrained(chunk.chunk))

    async def _finish(self, finish: FinishStep) -> None:
        metrics = await self._trainer.finish_step(finish.step)
        self._recorder.trained(metrics)
        self._control.apply(StepFinished(finish.step))
