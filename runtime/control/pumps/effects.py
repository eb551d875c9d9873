"""Which pump carries out which effect: `Pumps` is what `Control` hands the effects of each event to."""

from collections.abc import Sequence
from dataclasses import dataclass

from fsm import effects
from fsm.errors import InvariantBroken
from runtime.control.event_loop import Control
from runtime.control.pumps.checkpoints import CheckpointPump
from runtime.control.pumps.clock import ClockPump
from runtime.control.pumps.generation import GenerationPump
from runtime.control.pumps.rows import Rows
from runtime.control.pumps.sync import SyncPump
from runtime.control.pumps.training import TrainingPump
from runtime.control.run_recorder import RunRecorder


@dataclass(frozen=True, slots=True)
class Pumps:
    """All pumps of a run."""

    control: Control
    generation: GenerationPump
    training: TrainingPump
    sync: SyncPump
    checkpoints: CheckpointPump
    clock: ClockPump
    rows: Rows
    recorder: RunRecorder

    def carry_out(self, made: Sequence[effects.Effect]) -> None:
        """In the order given, except that rollouts to abort or start are gathered: a worker takes them in one call."""
        starts: list[effects.StartRollout] = []
        aborts: list[effects.AbortRollout] = []
        for effect in made:
            match effect:
                case effects.StartRollout():
                    starts.append(effect)
                case effects.AbortRollout():
                    aborts.append(effect)
                case effects.TrainChunk():
                    self.training.train_chunk(effect)
                case effects.FinishStep():
                    self.training.finish_step(effect)
                case effects.SyncWeights():
                    self.sync.sync_weights(effect)
                case effects.ClearRows():
                    self.rows.clear_rows(effect)
                case effects.StartBackoff():
                    self.clock.start_backoff(effect)
                case effects.StepClosed():
                    self.recorder.closed(effect)
                case effects.Completed() | effects.Stopped():
                    pass  # Control has ended the run
                case _:
                    raise InvariantBroken(f"no pump carries out {effect}")
        if aborts:
            self.generation.abort_rollouts(aborts)
        if starts and not self.control.over:
            self.generation.start_rollouts(starts)
