"""The sync pump: where weights are synced.

1. The trainer's ranks gather the weights and the first rank publishes them. After an optimizer step this is part of
   the call that takes it (`TrainerGroup.finish_step`); `publish` returns that publication, or makes the first one.
2. `Fleet.load` hands every generation worker the publication. The worker fetches the weights
   (`runtime.transport.weight_sync`), loads them unless it has newer ones, and returns its version, which must be
   the published one. A worker that was restarted loads the newest publication before anything else.
3. Once all have confirmed, the core hears SyncFinished, and dispatches again.

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
    """Syncs weights, and validates between two steps; the checkpoint pump has its moment first."""

    control: Control
    trainer: TrainerGroup
    fleet: Fleet
    recorder: RunRecorder
    checkpoints: CheckpointPump
    validations: Mapping[str, int | None]
    """Steps between two measurements of each set, by its name; None: never, like the next."""
    step_over: Callable[[], None] = lambda: None
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
            self.step_over()

    async def measure(self, name: str, label: str, progressed: Callable[[], None]) -> Evaluation:
        """Measure a set under the core's version, while no step is taken; calls `progressed` after each part.

        A sync that a stop has cut short is completed first, or an older version would be measured.
        """
        await self.fleet.load(await self.trainer.publish(self.control.core.state.trainer.version))
        return await self.fleet.evaluate(name, label, progressed)
