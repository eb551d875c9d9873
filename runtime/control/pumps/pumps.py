"""All pumps together: what `Control` hands effects to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsm.effects import (
    AbortRollout,
    ClearRows,
    FinishStep,
    StartBackoff,
    StartRollout,
    StepClosed,
    SyncWeights,
    TrainChunk,
)
from runtime.control.pumps.clock import ClockPump
from runtime.control.pumps.generation import GenerationPump
from runtime.control.pumps.rows import Rows
from runtime.control.pumps.sync import SyncPump
from runtime.control.pumps.training import TrainingPump
from runtime.control.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Pumps:
    """Each effect to the pump that carries it out."""

    generation: GenerationPump
    training: TrainingPump
    sync: SyncPump
    clock: ClockPump
    rows: Rows
    recorder: Recorder

    def start_rollouts(self, starts: Sequence[StartRollout]) -> None:
        """See GenerationPump."""
        self.generation.start_rollouts(starts)

    def abort_rollouts(self, aborts: Sequence[AbortRollout]) -> None:
        """See GenerationPump."""
        self.generation.abort_rollouts(aborts)

    def start_backoff(self, backoff: StartBackoff) -> None:
        """See ClockPump."""
        self.clock.start_backoff(backoff)

    def train_chunk(self, chunk: TrainChunk) -> None:
        """See TrainingPump."""
        self.training.train_chunk(chunk)

    def finish_step(self, finish: FinishStep) -> None:
        """See TrainingPump."""
        self.training.finish_step(finish)

    def sync_weights(self, sync: SyncWeights) -> None:
        """See SyncPump."""
        self.sync.sync_weights(sync)

    def clear_rows(self, clear: ClearRows) -> None:
        """See Rows."""
        self.rows.clear_rows(clear)

    def step_closed(self, closed: StepClosed) -> None:
        """For the records."""
        self.recorder.closed(closed)

    def dead_end(self) -> None:
        """See ClockPump."""
        self.clock.dead_end()
