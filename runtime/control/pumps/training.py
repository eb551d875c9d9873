"""The training pump.

Consumes: TrainChunk and FinishStep.
Waits for: the trainer (`TrainerGroup`).
Unblocked by: a chunk accumulated, an optimizer step done.
Produces: ClaimUnreadable, ChunkTrained and StepFinished.

Overlong filtering leaves a step without a token to train on if every one of its rollouts was cut off. Such a step
closes like any other and the version moves, while the weights stay. The recorder notes it. After
`stop_after_steps_without_tokens` such steps in a row, the run stops with the next chunk.
"""

from __future__ import annotations

import asyncio

from fsm.effects import FinishStep, TrainChunk
from fsm.errors import LimitReached
from fsm.events import ChunkTrained, ClaimUnreadable, StepFinished
from runtime.control.event_loop import Control
from runtime.control.ports import Recorder, TrainerPort
from runtime.control.pumps.rows import Rows
from runtime.training.step_metrics import NOTHING_TRAINED_REMEDY


class NothingTrained(LimitReached):
    """As many steps in a row as `loss_fn.stop_after_steps_without_tokens` allows trained on no token."""


class TrainingPump:
    """Hands chunks to the trainer."""

    def __init__(
        self, control: Control, trainer: TrainerPort, rows: Rows, recorder: Recorder, stop_after: int | None
    ) -> None:
        """stop_after: steps in a row without a trained token that stop the run; None: no number does."""
        self._control = control
        self._trainer = trainer
        self._rows = rows
        self._recorder = recorder
        self.longest_s = 0.0
        """The longest time that a chunk has taken, in seconds."""
        self._stop_after = stop_after
        self._in_a_row = 0
        """The last steps that trained on no token."""

    def train_chunk(self, chunk: TrainChunk) -> None:
        """Have the trainer accumulate a chunk's gradients."""
        self._control.spawn(self._train(chunk), f"chunk {chunk.chunk}")

    def finish_step(self, finish: FinishStep) -> None:
        """Have the trainer take the optimizer step."""
        self._control.spawn(self._finish(finish), f"step {finish.step}")

    async def _train(self, chunk: TrainChunk) -> None:
        self._refuse_to_go_on(chunk.step)
        rows = self._rows.of(group.prompt for group in chunk.groups)
        began_s = asyncio.get_running_loop().time()
        report = await self._trainer.accumulate(chunk.step, rows, self._rows.take_trained())
        self.longest_s = max(self.longest_s, asyncio.get_running_loop().time() - began_s)
        for unreadable in report.unreadable:
            self._control.apply(ClaimUnreadable(unreadable.prompt, unreadable.error))
        self._control.apply(ChunkTrained(chunk.chunk))

    async def _finish(self, finish: FinishStep) -> None:
        metrics = await self._trainer.finish_step(finish.step)
        self._recorder.trained(metrics)
        self._in_a_row = 0 if metrics.tokens else self._in_a_row + 1
        if self._in_a_row:
            self._recorder.nothing_trained(finish.step, metrics.masked_sequences)
        self._control.apply(StepFinished(finish.step))

    def _refuse_to_go_on(self, step: int) -> None:
        """Raise NothingTrained if too many steps before were empty. A run whose last steps they were just completes."""
        if self._in_a_row != self._stop_after:
            return
        which = f"step {step - 1}" if self._in_a_row == 1 else f"steps {step - self._in_a_row} to {step - 1}"
        raise NothingTrained(
            f"{which} trained on no token, and loss_fn.stop_after_steps_without_tokens is {self._stop_after}: every "
            "rollout was cut off by a length limit, and loss_fn.overlong_filtering leaves those out of the loss. "
            f"{NOTHING_TRAINED_REMEDY}, or stop_after_steps_without_tokens to null to continue anyway"
        )
