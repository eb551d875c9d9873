"""The checkpoint pump: when a checkpoint is due, what it holds, and its writing while the run goes on.

Consumes: the moments between two optimizer steps, from the sync pump; the end of the run.
Waits for: the trainer to copy its state, and, before that, the checkpoint before to be written.
Unblocked by: the copy. Writing, checksums and flushing follow on another thread of the trainer's process.
Produces: checkpoints, of which the core knows nothing. One that cannot be written is lost, and the run goes on.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from ray.exceptions import RayTaskError

from fsm.snapshot import Json, snapshot
from runtime.actors.trainer_group import TrainerGroup
from runtime.checkpointing import CheckpointingConfig
from runtime.checkpoints.checkpoint import prompts_with_data
from runtime.checkpoints.retention import Retention
from runtime.control.deadline import Deadline, of_training
from runtime.control.event_loop import Control
from runtime.control.failures import failure_of
from runtime.control.pumps.not_applied import StepsNotApplied
from runtime.control.pumps.rows import Rows
from runtime.control.run_recorder import RunRecorder, noted_call
from runtime.files import FileNotWritten
from runtime.trace.notes import CallEnded

PAUSE = 10.0
"""A lost checkpoint is tried again after a pause of so many times as long as it took, at the next step by then."""


@dataclass(slots=True)
class CheckpointPump:
    """Copies the run between two steps, and has one copy written at a time."""

    control: Control
    trainer: TrainerGroup
    rows: Rows
    recorder: RunRecorder
    config: CheckpointingConfig
    folder: Path
    taken_s: float
    """When the last checkpoint was copied, or the run began, on the loop's clock."""
    not_applied: StepsNotApplied = field(default_factory=StepsNotApplied)
    longest_s: float = 0.0
    """The longest time that a checkpoint has taken from its copy to its end, in seconds; 0 before the first is written.
    """
    lost: int = 0
    """Checkpoints that could not be written."""
    copies: Deadline = field(default_factory=of_training)
    newest: Json | None = None
    """The snapshot in the newest checkpoint of the run; None before it has one."""
    _retry_s: float | None = None
    """When a checkpoint is due again because the last could not be written; None if it was."""
    _writing: asyncio.Task[Exception | None] | None = None
    """The last checkpoint; its result is why it was lost."""

    async def between_steps(self, version: int) -> None:
        """Copy the run if a checkpoint is due. Returns as soon as the trainer may go on."""
        if not self._is_due(version):
            return
        try:
            await self._copy(None)
        except RayTaskError as error:  # a trainer that died raises another, which ends the run
            self.recorder.note(CallEnded("checkpoint", version))
            self._not_written(version, error)

    async def save(self, control: Json | None) -> None:
        """Save the run as it is now, which must be between two optimizer steps; or as `control`, an earlier snapshot.

        Raises the error that loses the checkpoint.
        """
        await self._copy(control)
        if error := await self.written():
            raise error

    async def written(self) -> Exception | None:
        """Wait for the checkpoint that is being written, if one is. Returns why it was lost, if it was."""
        if self._writing is None:
            return None
        await asyncio.wait([self._writing])  # whoever gives up waiting does not cancel it
        return self._writing.result()

    def _is_due(self, version: int) -> bool:
        config, now_s = self.config, asyncio.get_running_loop().time()
        if not config.enabled or self.not_applied.in_doubt:
            return False
        if config.every_steps and version % config.every_steps == 0:
            return True
        if self._writing is not None and not self._writing.done():
            return False
        if self._retry_s is not None:
            return now_s >= self._retry_s
        if config.max_wall_s is not None and self.longest_s == 0.0:
            return True  # how long one takes decides when the run must end
        return config.every_minutes is not None and now_s - self.taken_s >= 60.0 * config.every_minutes

    async def _copy(self, control: Json | None) -> None:
        """Copy a checkpoint and start writing it, after the one before is written."""
        step = self.control.core.state.trainer.version if control is None else control["state"]["trainer"][1]
        with noted_call(self.recorder, "checkpoint", step):
            await self.written()
            control = snapshot(self.control.core) if control is None else control
            self.taken_s = asyncio.get_running_loop().time()
            with self.rows.held():
                work = self.trainer.copy_state(step, self.rows.of(prompts_with_data(control)))
                await self.copies.of(f"the copy for the checkpoint of step {step}", work)
        self._writing = asyncio.create_task(self._write(step, control), name=f"checkpoint of step {step}")

    async def _write(self, step: int, control: Json) -> Exception | None:
        """Write what was copied. Returns why it is lost, if it is."""
        config = self.config
        try:
            retention = Retention(config.keep, config.keep_every_steps)
            path, not_removed = await self.trainer.write_checkpoint(self.folder, control, retention)
        except Exception as error:
            self._not_written(step, error)
            return error
        self.longest_s = max(self.longest_s, asyncio.get_running_loop().time() - self.taken_s)
        self.newest = control
        self.recorder.checkpointed(step, path)
        if self._retry_s is not None:
            self._retry_s = None
            self.recorder.said(f"checkpoints can be written again: {path.name} was")
        if not_removed is not None:
            self.recorder.said(not_removed)
        return None

    def _not_written(self, step: int, error: Exception) -> None:
        """Count a lost checkpoint, decide when to try again, and report it, unless the one before was lost too.

        Once the run is over, its end reports what it could not save.
        """
        self.lost += 1
        now_s = asyncio.get_running_loop().time()
        is_first, self._retry_s = self._retry_s is None, now_s + PAUSE * (now_s - self.taken_s)
        if not is_first or self.control.over:
            return
        goes_on = "the run continues, and tries again between later steps"
        if isinstance(error, FileNotWritten):
            self.recorder.not_written(FileNotWritten(error.path, error.reason, f"{error.kept}; {goes_on}"))
        else:
            self.recorder.said(f"the checkpoint after step {step} was not written: {failure_of(error).says}; {goes_on}")
