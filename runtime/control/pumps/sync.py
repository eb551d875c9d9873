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
Produces: SyncFinished; every so many steps also a validation or a checkpoint, of which the core knows nothing.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fsm.effects import SyncWeights
from fsm.events import SyncFinished
from fsm.snapshot import Json, snapshot
from runtime.actors.fleet import Fleet
from runtime.actors.trainer_group import TrainerGroup
from runtime.checkpoints.checkpoint import prompts_with_data
from runtime.control.event_loop import Control
from runtime.control.pumps.not_applied import StepsNotApplied
from runtime.control.pumps.rows import Rows
from runtime.control.run_recorder import RunRecorder
from runtime.files import FileNotWritten
from runtime.groups import Evaluation
from runtime.trace.notes import CallBegan, CallEnded
from runtime.wording import counted


@dataclass(slots=True)
class SyncPump:
    """Syncs weights, and between two steps validates and saves checkpoints."""

    control: Control
    trainer: TrainerGroup
    fleet: Fleet
    rows: Rows
    recorder: RunRecorder
    validations: Mapping[str, int | None]
    """Steps between two measurements of each set, by its name; None: never, like the next."""
    checkpoint_every: int | None
    checkpoints: Path
    keep: int
    not_applied: StepsNotApplied = field(default_factory=StepsNotApplied)
    longest_save_s: float = 0.0
    """The longest time that a checkpoint has taken, in seconds."""

    def sync_weights(self, sync: SyncWeights) -> None:
        self.control.spawn(self._sync(sync.version), f"sync of version {sync.version}")

    async def _sync(self, version: int) -> None:
        if self.checkpoint_every and version % self.checkpoint_every == 0 and not self.not_applied.in_doubt:
            # Before the workers load the weights: no rank computes now, and a resume finds the version that closed.
            try:
                await self.checkpoint()
            except FileNotWritten as error:
                kept = f"{error.kept}; the run continues, and tries again in {counted(self.checkpoint_every, 'step')}"
                self.recorder.not_written(FileNotWritten(error.path, error.reason, kept))
        with self._recorded("publish", version):
            published = await self.trainer.publish(version)
        with self._recorded("load", version):
            await self.fleet.load(published)
        if self.control.apply(SyncFinished(version)):
            self.recorder.synced(version)
        for name, every in self.validations.items():
            if not self.control.over and every is not None and version % every == 0:
                with self._recorded("evaluate", version):
                    evaluation = await self.fleet.evaluate(name, f"{name}-{version}", self.control.progressed)
                self.recorder.evaluated(version, name, evaluation)

    async def checkpoint(self, control: Json | None = None) -> None:
        """Save the run as it is now, which must be between two optimizer steps; or as `control`, an earlier snapshot.

        The snapshot is taken before anything is waited for; its rows are held until they are written.
        Raises FileNotWritten: earlier checkpoints stay.
        """
        control = snapshot(self.control.core) if control is None else control
        rows = self.rows.of(prompts_with_data(control))
        step = control["state"]["trainer"][1]
        began_s = asyncio.get_running_loop().time()
        with self._recorded("checkpoint", step):
            path = await self.trainer.checkpoint(self.checkpoints, control, rows, self.keep)
        self.longest_save_s = max(self.longest_save_s, asyncio.get_running_loop().time() - began_s)
        self.recorder.checkpointed(step, path)

    async def measure(self, name: str, label: str, progressed: Callable[[], None]) -> Evaluation:
        """Measure a set under the core's version, while no step is taken; calls `progressed` after each part.

        A sync that a stop has cut short is completed first, or an older version would be measured.
        """
        await self.fleet.load(await self.trainer.publish(self.control.core.state.trainer.version))
        return await self.fleet.evaluate(name, label, progressed)

    @contextmanager
    def _recorded(self, call: str, number: int) -> Iterator[None]:
        """Note a call's begin and end. A file that the disk refuses ends a call too: the run continues."""
        self.recorder.note(CallBegan(call, number))
        try:
            yield
        except FileNotWritten:
            self.recorder.note(CallEnded(call, number))
            raise
        self.recorder.note(CallEnded(call, number))
