"""The sync pump.

Consumes: SyncWeights.
Waits for: the trainer to publish the version, then every generation worker to confirm it.
Unblocked by: the last confirmation.
Produces: SyncFinished; then, every so many steps, a validation or a checkpoint, which the core knows nothing of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fsm.effects import SyncWeights
from fsm.events import SyncFinished
from fsm.snapshot import Json, snapshot
from runtime.control.event_loop import Control
from runtime.control.ports import FleetPort, TrainerPort
from runtime.control.pumps.rows import Rows
from runtime.control.recorder import Recorder
from runtime.files.unwritten import FileNotWritten
from runtime.groups import Evaluation


class SyncPump:
    """Moves weights, and does what belongs between two steps.

    `validation_every` and `checkpoint_every` are in steps, None for never.
    """

    def __init__(
        self,
        control: Control,
        trainer: TrainerPort,
        fleet: FleetPort,
        rows: Rows,
        recorder: Recorder,
        *,
        validation_every: int | None,
        checkpoint_every: int | None,
        checkpoints: Path,
        keep: int,
    ) -> None:
        self._control = control
        self._trainer = trainer
        self._fleet = fleet
        self._rows = rows
        self._recorder = recorder
        self._validation_every = validation_every
        self._checkpoint_every = checkpoint_every
        self._checkpoints = checkpoints
        self._keep = keep
        self.longest_save_s = 0.0
        """What a checkpoint has taken at most, in seconds."""

    def sync_weights(self, sync: SyncWeights) -> None:
        """See SyncWeights."""
        self._control.spawn(self._sync(sync.version), f"sync of version {sync.version}")

    async def checkpoint(self, control: Json | None = None) -> None:
        """Save the run as it stands, which must be between two optimizer steps; or as `control`, an earlier snapshot.

        The snapshot is taken before anything is waited for; its rows are held until they are written.
        Raises FileNotWritten: those before it stay.
        """
        control = snapshot(self._control.core) if control is None else control
        prompts = [group[0] for place in ("ready", "chunk", "accumulated") for group in control[place]]
        step = control["state"]["trainer"][1]
        self._recorder.call_began("checkpoint", step)
        began_s = asyncio.get_running_loop().time()
        try:
            path = await self._trainer.checkpoint(self._checkpoints, control, self._rows.of(prompts), self._keep)
        except FileNotWritten:
            self._recorder.call_ended("checkpoint", step)  # the run goes on, so the call is over
            raise
        self.longest_save_s = max(self.longest_save_s, asyncio.get_running_loop().time() - began_s)
        self._recorder.call_ended("checkpoint", step)
        self._recorder.checkpointed(step, path)

    async def measure(self, label: str, progressed: Callable[[], None]) -> Evaluation:
        """Held-out accuracy of the core's version, while no step is taken; `progressed` is called as it gets on.

        A sync that a stop has cut short is completed first, or an older version would be measured.
        """
        await self._fleet.load(await self._trainer.publish(self._control.core.state.trainer.version))
        return await self._fleet.evaluate(label, progressed)

    async def _sync(self, version: int) -> None:
        if self._checkpoint_every and version % self._checkpoint_every == 0:
            # Now, since the trainer is at rest, and would publish after it anyway.
            try:
                await self.checkpoint()
            except FileNotWritten as error:
                kept = f"{error.kept}; the run goes on, and tries again in {self._checkpoint_every} steps"
                self._recorder.not_written(FileNotWritten(error.path, error.reason, kept))
        self._recorder.call_began("publish", version)
        publication = await self._trainer.publish(version)
        self._recorder.call_ended("publish", version)
        self._recorder.call_began("load", version)
        await self._fleet.load(publication)
        self._recorder.call_ended("load", version)
        if self._control.apply(SyncFinished(version)):
            self._recorder.synced(version)
        if not self._control.over and self._validation_every and version % self._validation_every == 0:
            self._recorder.call_began("evaluate", version)
            evaluation = await self._fleet.evaluate(f"validation-{version}", self._control.progressed)
            self._recorder.call_ended("evaluate", version)
            self._recorder.evaluated(version, evaluation)
