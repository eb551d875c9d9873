"""The sync pump: what happens in a weight sync.

The core decides on it: each step that closes asks for one (`fsm/groups/book.py`, `_close`). Until it is over the
trainer is SYNCING (`fsm/machines/trainer.py`): it takes no chunk, and no attempt starts (D1, D2;
`fsm/rules/own_moves.py`). Attempts that run go on: they keep their tokens, and sample the next ones with the new
weights (`runtime/generation/engine.py`); a sampler that wants no attempt of older weights aborts it as the step closes
(E1). Two loads are not asked for by the core: the first of a run (`runtime/control/starting.py`), and `measure`.

1. As the optimizer step ends, the trainer's ranks gather the weights and the first rank publishes them
   (`TrainerGroup.finish_step`). `TrainerGroup.publish` returns that, and publishes only what is not published yet: at
   the start of a run.
2. If a checkpoint is due, the trainer copies its state.
3. `Fleet.load` hands what was published to every worker that serves. Unless it runs that version or a later one, the
   worker fetches the weights (`runtime/transport/weight_sync.py`) and loads them. It returns the version that it runs,
   which must be the published one. A worker that was restarted loads the newest publication before it serves.
4. Once all have confirmed, the core hears SyncFinished, and chunks and attempts start again.

Consumes: SyncWeights.
Waits for: the trainer to publish the version, then every generation worker to confirm it.
Unblocked by: the last confirmation.
Produces: SyncFinished; every so many steps also a validation, of which the core knows nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fsm.effects import SyncWeights
from fsm.events import SyncFinished
from runtime.actors.fleet import Fleet
from runtime.actors.trainer_group import TrainerGroup
from runtime.control.deadline import Deadline, of_publishing
from runtime.control.event_loop import Control
from runtime.control.pumps.checkpoints import CheckpointPump
from runtime.control.run_recorder import RunRecorder, noted_call
from runtime.groups import Evaluation


@dataclass(slots=True)
class SyncPump:
    """Syncs weights between two steps, after the copy of a checkpoint that is due; then validates."""

    control: Control
    trainer: TrainerGroup
    fleet: Fleet
    recorder: RunRecorder
    checkpoints: CheckpointPump
    validations: Mapping[str, int | None]
    """Steps between two measurements of each set, by its name; None: never, like the next."""
    on_step_done: Callable[[], None] = lambda: None
    """Called when all of a step is done: its sync, and a validation."""
    publishing: Deadline = field(default_factory=of_publishing)

    def sync_weights(self, sync: SyncWeights) -> None:
        self.control.spawn(self._sync(sync.version), f"sync of version {sync.version}")

    async def _sync(self, version: int) -> None:
        # Before the workers load the weights: no rank computes now, and a resume finds the version that closed.
        await self.checkpoints.between_steps(version)
        with noted_call(self.recorder, "publish", version):
            published = await self.publishing.of(f"publishing version {version}", self.trainer.publish(version))
        with noted_call(self.recorder, "load", version):
            await self.fleet.load(published)
        if self.control.apply(SyncFinished(version)):
            self.recorder.synced(version)
        for name, every in self.validations.items():
            if not self.control.over and every is not None and version % every == 0:
                with noted_call(self.recorder, "evaluate", version):
                    evaluation = await self.fleet.evaluate(name, f"{name}-{version}", self.control.progressed)
                self.recorder.evaluated(version, name, evaluation)
        if not self.control.over:
            self.on_step_done()

    async def measure(self, name: str, label: str, progressed: Callable[[], None]) -> Evaluation:
        """Measure a set under the core's version, while no step is taken; calls `progressed` after each part.

        A sync that a stop has cut short is completed first, or an older version would be measured.
        """
        await self.fleet.load(await self.trainer.publish(self.control.core.state.trainer.version))
        return await self.fleet.evaluate(name, label, progressed)
