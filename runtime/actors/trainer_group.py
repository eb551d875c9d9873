"""All trainer ranks behind one handle: every rank gets the same calls, in the same order."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from fsm.events import ClaimUnreadable
from runtime.actors.trainer_rank import CONCURRENCY_GROUPS, TrainerRank, Written
from runtime.checkpoints.checkpoint import TRAINER
from runtime.checkpoints.origin import Origin
from runtime.checkpoints.retention import Retention
from runtime.files import FileNotWritten, Json
from runtime.naming import Names, start_actor, trainer_resources
from runtime.output.shared_output import SharedOutput
from runtime.settings import Settings
from runtime.tasks.data import read_chat_template
from runtime.training.step_metrics import StepMetrics
from runtime.transport.answers import Published, Row
from runtime.transport.collective.meeting import MeetingPoint
from runtime.transport.data_plane import DataPlane

DEATH_S = 5.0
"""How long Ray may take to notice the death of a rank whose connections have broken."""


class TrainerGroup:
    """The trainer, for the controller. A rank that dies ends this attempt at the run, and the driver restarts it."""

    def __init__(
        self, settings: Settings, names: Names, model_directory: Path, plane: DataPlane, origin: Origin
    ) -> None:
        self._origin = origin
        self._chat_template = read_chat_template(settings.data)
        """As it is now: the file may be changed during the run."""
        self._ranks: list[ActorHandle[Any]] = [
            start_actor(
                TrainerRank,
                {
                    **names.options(f"trainer-{rank}"),
                    **trainer_resources(settings),
                    "concurrency_groups": CONCURRENCY_GROUPS,
                },
                settings,
                model_directory,
                plane,
            )
            for rank in range(settings.cluster.num_trainer_ranks)
        ]
        self._published: Published | None = None
        """The newest."""

    async def look(self, shared: SharedOutput) -> None:
        """Raise OutputNotShared unless every rank sees the run's directory."""
        calls = [rank.look.remote(shared, f"trainer rank {number}") for number, rank in enumerate(self._ranks)]
        await asyncio.gather(*calls)

    async def open(self) -> None:
        many = len(self._ranks) > 1
        meeting_point: MeetingPoint | None = await self._ranks[0].meeting_point.remote() if many else None
        await asyncio.gather(
            *(rank.open.remote(number, len(self._ranks), meeting_point) for number, rank in enumerate(self._ranks))
        )

    async def accumulate(
        self, step: int, rows: Sequence[tuple[int, Row]], unneeded: Sequence[Row]
    ) -> Sequence[ClaimUnreadable]:
        """Add the gradients of these prompts' groups, in this order; unreadable groups are left out and returned.

        All ranks find the same groups unreadable; the first has the reasons. The call also deletes `unneeded`: rows of
        earlier steps.
        """
        unreadable: Sequence[ClaimUnreadable] = (await self._all("accumulate", step, rows, unneeded))[0]
        return unreadable

    async def finish_step(self, step: int) -> StepMetrics:
        """Take the optimizer step, and publish the weights, which would be the next call."""
        calls: list[tuple[Any, Any]] = [rank.finish_step.remote(step) for rank in self._ranks]
        metrics: StepMetrics = (await _answers(finished for finished, _ in calls))[0]
        self._published = Published(metrics.version, calls[0][1])
        return metrics

    async def publish(self, version: int) -> Published:
        """Publish the weights, unless `finish_step` has done so."""
        if self._published is None or self._published.version != version:
            calls: list[tuple[Any, Any]] = [rank.publish.remote(version) for rank in self._ranks]
            await _answers(done for done, _ in calls)
            self._published = Published(version, calls[0][1])
        return self._published

    async def copy_state(self, step: int, rows: Sequence[tuple[int, Row]]) -> None:
        """Copy the trainer of `step` optimizer steps, and the groups of `rows`, for `write_checkpoint`.

        The trainer rests so long; it may train on afterwards. One more copy of weights and optimizer takes the first
        rank's memory until it is written.
        """
        await self._all("copy_state", step, rows)

    async def write_checkpoint(self, directory: Path, control: Json, retention: Retention) -> Written:
        """Write what was copied, with the core's snapshot, and remove checkpoints that need not stay.

        The trainer may be called meanwhile, but not for another copy. Raises FileNotWritten.
        """
        try:
            written: Written = await self._ranks[0].write_checkpoint.remote(directory, control, self._origin, retention)
        except RayTaskError as error:
            if isinstance(error.cause, FileNotWritten):
                raise error.cause from None
            raise
        return written

    async def save_model(self, directory: Path) -> Path:
        """Write the policy as a Hugging Face directory that replaces `directory`. Returns its path.

        Raises ModelNotSaved if it cannot be written; an older model there is unchanged then.
        """
        path: Path = (await self._all("save_model", directory, self._chat_template))[0]
        return path

    async def resume(self, checkpoint: Path) -> Sequence[tuple[int, Row]]:
        """Resume from a checkpoint that has been verified. Returns the rows of its groups, by prompt."""
        rows: Sequence[tuple[int, Row]] = await self._ranks[0].put_groups_of.remote(checkpoint)
        await self._all("load", checkpoint / TRAINER)
        return rows

    def close(self) -> None:
        for rank in self._ranks:
            ray.kill(rank)

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        calls = [getattr(rank, method).remote(*arguments) for rank in self._ranks]
        return await _answers(calls)


async def _answers(calls: Iterable[Any]) -> list[Any]:
    """The answers of all ranks. A rank's death is raised rather than what the others say of its connections."""
    asked: list[asyncio.Future[Any]] = [asyncio.ensure_future(call) for call in calls]
    await asyncio.wait(asked, return_when=asyncio.FIRST_EXCEPTION)
    if not any(call.done() and call.exception() for call in asked):
        return [call.result() for call in asked]
    await asyncio.wait(asked, timeout=DEATH_S)
    errors = [error for call in asked if call.done() and (error := call.exception()) is not None]
    raise next((error for error in errors if is_death(error)), errors[0])


def is_death(error: BaseException) -> bool:
    """Whether the process that was called has died, and not one that it has called."""
    return isinstance(error, RayActorError) and not isinstance(error, RayTaskError)
