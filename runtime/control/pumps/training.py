"""The training pump.

Consumes: TrainChunk and FinishStep.
Waits for: the trainer (`TrainerGroup`).
Unblocked by: a chunk accumulated, an optimizer step done.
Produces: ClaimUnreadable, ChunkTrained and StepFinished. After a call past its deadline the run restarts.

Overlong filtering leaves a step without a token to train on if every one of its rollouts was cut off. Such a step
closes like any other and the version moves, while the weights stay. The recorder notes it. After
`stop_after_steps_without_tokens` such steps in a row, the run stops with the next chunk. Likewise with steps whose
numbers are not finite (`not_applied`).
"""

import asyncio
from dataclasses import dataclass, field

from fsm.effects import FinishStep, TrainChunk
from fsm.errors import LimitReached
from fsm.events import ChunkTrained, StepFinished
from runtime.actors.trainer_group import TrainerGroup
from runtime.control.deadline import Deadline, of_training
from runtime.control.event_loop import Control
from runtime.control.pumps.not_applied import StepsNotApplied
from runtime.control.pumps.rows import Rows
from runtime.control.run_recorder import RunRecorder
from runtime.training.step_metrics import NOTHING_TRAINED_REMEDY


class NothingTrained(LimitReached):
    """As many steps in a row as `loss_fn.stop_after_steps_without_tokens` allows trained on no token."""


@dataclass(slots=True)
class TrainingPump:
    """Hands chunks to the trainer."""

    control: Control
    trainer: TrainerGroup
    rows: Rows
    recorder: RunRecorder
    stop_after: int | None
    """Steps in a row without a trained token that stop the run; None: no number does."""
    not_applied: StepsNotApplied = field(default_factory=StepsNotApplied)
    longest_s: float = 0.0
    """The longest time that a chunk has taken, in seconds."""
    in_a_row: int = 0
    """The last steps that trained on no token."""
    chunks: Deadline = field(default_factory=of_training)
    steps: Deadline = field(default_factory=of_training)
    """Deadlines: optimizer steps and chunks take different times."""

    def train_chunk(self, chunk: TrainChunk) -> None:
        self.control.spawn(self._train(chunk), f"chunk {chunk.chunk}")

    def finish_step(self, finish: FinishStep) -> None:
        self.control.spawn(self._finish(finish), f"step {finish.step}")

    async def _train(self, chunk: TrainChunk) -> None:
        self._refuse_to_go_on(chunk.step)
        self.not_applied.refuse_to_go_on(chunk.step)
        rows = self.rows.of(group.prompt for group in chunk.groups)
        began_s = asyncio.get_running_loop().time()
        work = self.trainer.accumulate(chunk.step, rows, self.rows.take_trained())
        unreadable = await self.chunks.of(f"chunk {chunk.chunk} of step {chunk.step}", work)
        self.longest_s = max(self.longest_s, asyncio.get_running_loop().time() - began_s)
        for claim in unreadable:
            self.control.apply(claim)
        self.control.apply(ChunkTrained(chunk.chunk))

    async def _finish(self, finish: FinishStep) -> None:
        metrics = await self.steps.of(f"the optimizer step {finish.step}", self.trainer.finish_step(finish.step))
        self.recorder.trained(metrics)
        self.not_applied.finished(metrics)
        if metrics.not_finite:
            self.recorder.not_applied(finish.step, metrics.not_finite, self.not_applied.in_a_row)
        self.in_a_row = 0 if metrics.tokens else self.in_a_row + 1
        if self.in_a_row:
            self.recorder.nothing_trained(finish.step, metrics.masked_sequences)
        self.control.apply(StepFinished(finish.step))

    def _refuse_to_go_on(self, step: int) -> None:
        """Raise NothingTrained if too many steps before were empty. A run whose last steps they were just completes."""
        if self.in_a_row != self.stop_after:
            return
        which = f"step {step - 1}" if self.in_a_row == 1 else f"steps {step - self.in_a_row} to {step - 1}"
        raise NothingTrained(
            f"{which} trained on no token, and loss_fn.stop_after_steps_without_tokens is {self.stop_after}: every "
            "rollout was cut off by a length limit, and loss_fn.overlong_filtering leaves those out of the loss. "
            f"{NOTHING_TRAINED_REMEDY}, or stop_after_steps_without_tokens to null to continue anyway"
        )
