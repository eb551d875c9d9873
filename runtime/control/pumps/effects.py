"""Which pump carries out which effect: `Pumps` is what `Control` hands the effects of each event to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsm.effects import (
    AbortRollout,
    ClearRows,
    Completed,
    Effect,
    FinishStep,
    StartBackoff,
    StartRollout,
    StepClosed,
    Stopped,
    SyncWeights,
    TrainChunk,
)
from fsm.errors import InvariantBroken
from runtime.control.event_loop import Control
from runtime.control.ports import Recorder
from runtime.control.pumps.clock import ClockPump
from runtime.control.pumps.generation import GenerationPump
from runtime.control.pumps.rows import Rows
from runtime.control.pumps.sync import SyncPump
from runtime.control.pumps.training import TrainingPump


@dataclass(frozen=True, slots=True)
class Pumps:
    """All pumps of a run."""

    control: Control
    generation: GenerationPump
    training: TrainingPump
    sync: SyncPump
    clock: ClockPump
    rows: Rows
    recorder: Recorder

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """In the order given, except that rollouts to abort or start are gathered: a worker takes them in one call."""
        starts: list[StartRollout] = []
        aborts: list[AbortRollout] = []
        for effect in effects:
            match effect:
                case StartRollout():
                    starts.append(effect)
                case AbortRollout():
                    aborts.append(effect)
                case TrainChunk():
                    self.training.train_chunk(effect)
                case FinishStep():
                    self.training.finish_step(effect)
                case SyncWeights():
                    self.sync.sync_weights(effect)
                case ClearRows():
                    self.rows.clear_rows(effect)
                case StartBackoff():
                    self.clock.start_backoff(effect)
                case StepClosed():
                    self.recorder.closed(effect)
                case Completed() | Stopped():
                    pass  # Control has ended the run
                case _:
                    raise InvariantBroken(f"no pump carries out {effect}")
        if aborts:
            self.generation.abort_rollouts(aborts)
        if starts and not self.control.over:
            self.generation.start_rollouts(starts)

    def dead_end(self) -> None:
        """The core can never continue."""
        self.clock.dead_end()
