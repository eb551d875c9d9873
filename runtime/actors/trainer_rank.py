"""A trainer rank: a StepTrainer in a separate process. All ranks get the same calls, in the same order.

torch is imported late, in the rank's process, since the controller imports this module and must not import torch.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import ray

from fsm.events import ClaimUnreadable
from runtime.checkpoints import checkpoint
from runtime.checkpoints.origin import Origin
from runtime.checkpoints.retention import Retention, retire
from runtime.files import Json
from runtime.groups import RolloutGroup
from runtime.naming import this_host
from runtime.output.shared_output import SharedOutput
from runtime.settings import Settings
from runtime.training.step_metrics import StepMetrics
from runtime.transport.answers import Publication, Row
from runtime.transport.collective.meeting import MeetingPoint
from runtime.transport.data_plane import DataPlane
from runtime.transport.weight_sync import make_publisher

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's own omission

    from runtime.training.ranks import Ranks
    from runtime.training.state import StateCopy
    from runtime.training.trainer import StepTrainer


WRITING = "writing"
"""The concurrency group of `write_checkpoint`: a thread of its own. All other calls run on one thread, in order."""
CONCURRENCY_GROUPS = {WRITING: 1}


class Written(NamedTuple):
    """A checkpoint that was written."""

    path: Path
    not_removed: str | None
    """Why a checkpoint that need not stay is still there; None if none is."""


class TrainerRank:
    """One process of the trainer. `open` comes first."""

    def __init__(self, settings: Settings, model_directory: Path, plane: DataPlane) -> None:
        self._settings = settings
        self._model_directory = model_directory
        self._plane = plane
        self._publisher = make_publisher(settings)
        self._stack = ExitStack()
        self._store: TCPStore | None = None
        """Where the ranks meet, if this is the first of several."""
        self._trainer: StepTrainer
        self._copied: tuple[StateCopy, dict[int, RolloutGroup]] | None = None
        """What the next checkpoint holds, if this is the first rank; None if it is not copied yet."""

    def look(self, shared: SharedOutput, who: str) -> None:
        """Raise OutputNotShared unless this process sees the run's directory."""
        shared.look(who)

    def meeting_point(self) -> MeetingPoint:
        """Open the store where the ranks meet, at this machine's address only."""
        from runtime.transport.collective.group import open_store

        host = this_host()
        self._store = open_store(host)
        return MeetingPoint(host, self._store.port)

    def open(self, rank: int, world_size: int, meeting_point: MeetingPoint | None) -> None:
        from runtime.training.ranks import alone, joined_ranks
        from runtime.training.trainer import StepTrainer
        from runtime.transport.collective.group import visited

        settings = self._settings
        device = "cuda:0" if settings.cluster.trainer_device == "cuda" else "cpu"
        ranks = alone(device)
        if meeting_point is not None:
            store = self._store or visited(meeting_point)
            ranks = self._stack.enter_context(joined_ranks(rank, world_size, store=store, device=device))
        self._trainer = StepTrainer(
            settings.policy.model_copy(update={"model_name": str(self._model_directory)}),
            settings.loss_fn,
            settings.optimizer,
            temperature=settings.generation.temperature,
            ranks=ranks,
        )

    def accumulate(
        self, step: int, rows: Sequence[tuple[int, Row]], unneeded: Sequence[Row]
    ) -> tuple[ClaimUnreadable, ...]:
        """Read a chunk and add its gradients. A group that one rank cannot read is left out by all ranks."""
        share, unreadable = read_share(self._plane, rows, unneeded, self._trainer.ranks)
        if len(unreadable) < len(rows):
            self._trainer.accumulate(share, step)
        return unreadable

    @ray.method(num_returns=2)
    def finish_step(self, step: int) -> tuple[StepMetrics, Publication | None]:
        """Take the optimizer step and publish its weights: its metrics, and what `publish` returns."""
        metrics = self._trainer.finish_step()
        if metrics.version != step + 1:
            raise ValueError(f"step {step} was asked for, but the trainer is at version {metrics.version} now")
        return metrics, self._publish(metrics.version)

    @ray.method(num_returns=2)
    def publish(self, version: int) -> tuple[int, Publication | None]:
        """Publish the weights. Returns the version, and the Publication, which is None on all ranks but the first."""
        return version, self._publish(version)

    def _publish(self, version: int) -> Publication | None:
        if version != self._trainer.version:
            raise ValueError(f"version {version} was asked for, but the trainer is at {self._trainer.version}")
        weights = self._trainer.state_numpy(self._settings.weight_sync.dtype)
        return self._publisher.publish(weights, version) if self._trainer.ranks.rank == 0 else None

    def copy_state(self, step: int, rows: Sequence[tuple[int, Row]]) -> None:
        """Every rank: copy what a checkpoint of `step` optimizer steps holds, for `write_checkpoint`.

        Whatever is trained, or deleted in the data plane, after this call does not change it.
        """
        self._copied = None  # an earlier copy that was not written would double the memory
        if self._trainer.version != step:
            raise ValueError(
                f"a checkpoint of step {step} was asked for, but the trainer is at {self._trainer.version}"
            )
        state = self._trainer.copy_state()
        if state is not None:
            self._copied = state, _groups_of(self._plane, rows)

    @ray.method(concurrency_group=WRITING)
    def write_checkpoint(self, directory: Path, control: Json, origin: Origin, retention: Retention) -> Written:
        """First rank, while it may train: write what `copy_state` has copied, with the core's snapshot, `control`.

        Raises FileNotWritten; no checkpoint was added then, and no other was removed.
        """
        from runtime.training.state import write_state

        if self._copied is None:
            raise RuntimeError("no checkpoint: nothing was copied")
        (state, groups), self._copied = self._copied, None
        with checkpoint.staging(directory) as staged:
            write_state(staged / checkpoint.TRAINER, state)
            path = checkpoint.commit(
                staged,
                step=state.steps.version,
                control=control,
                groups=groups,
                task_state={"seed": self._settings.data.seed},
                random_states={"seed": self._settings.seed},
                origin=origin,
            )
        return Written(path, retire(directory, retention))

    def save_model(self, directory: Path, chat_template: str | None) -> Path:
        """Every rank: the policy as a Hugging Face directory, which the first rank writes. Returns its path."""
        return self._trainer.save_model(directory, chat_template)

    def load(self, trainer_directory: Path) -> None:
        """Every rank: resume from a checkpoint. Raises CheckpointTorn if a trainer's folder is not what it writes."""
        try:
            self._trainer.load(trainer_directory)
        except (ValueError, OSError, *checkpoint.NOT_OURS) as error:
            reason = f"its trainer's state cannot be loaded ({type(error).__name__}: {error})"
            raise checkpoint.CheckpointTorn(trainer_directory.parent, reason) from error

    def put_groups_of(self, path: Path) -> tuple[tuple[int, Row], ...]:
        """First rank: give a checkpoint's groups new rows in the data plane. Raises CheckpointRefused."""
        found = checkpoint.load(path, hashed=False)  # it was verified when the run was asked for
        return asyncio.run(_put(self._plane, found.groups))


def _groups_of(plane: DataPlane, rows: Sequence[tuple[int, Row]]) -> dict[int, RolloutGroup]:
    """The groups of these rows, by prompt. Raises RuntimeError for one that cannot be read."""
    groups = {}
    for (prompt, _), group in zip(rows, plane.get([row for _, row in rows]), strict=True):
        if isinstance(group, str):
            raise RuntimeError(f"no checkpoint: the data of prompt {prompt} cannot be read: {group}")
        groups[prompt] = group
    return groups


def read_share(
    plane: DataPlane, rows: Sequence[tuple[int, Row]], unneeded: Sequence[Row], ranks: "Ranks"
) -> tuple[list[RolloutGroup], tuple[ClaimUnreadable, ...]]:
    """This rank's groups of a chunk, and those that not every rank could read: no rank trains on them.

    Groups are in order of their prompts: a sum of floats depends on its order, and that of selection on retries. The
    first rank has `unneeded` deleted. A collective: every rank must call it, with the same rows.
    """
    import torch

    from runtime.training.ranks import share_of_rank

    rows = sorted(rows, key=lambda each: each[0])
    groups = plane.get([row for _, row in rows], unneeded if ranks.rank == 0 else ())
    lacking = torch.tensor([isinstance(group, str) for group in groups], dtype=torch.float32, device=ranks.device)
    readable: list[RolloutGroup] = []
    unreadable: list[ClaimUnreadable] = []
    for (prompt, _), group, lost in zip(rows, groups, ranks.maximum(lacking).tolist(), strict=True):
        if isinstance(group, str):
            unreadable.append(ClaimUnreadable(prompt, f"prompt {prompt}: {group}"))
        elif lost:
            unreadable.append(ClaimUnreadable(prompt, f"prompt {prompt}: another trainer rank could not read it"))
        else:
            readable.append(group)
    return share_of_rank(readable, ranks.rank, ranks.world_size), tuple(unreadable)


async def _put(plane: DataPlane, groups: Mapping[int, RolloutGroup]) -> tuple[tuple[int, Row], ...]:
    """Not a method: with one coroutine method, all calls of the actor would share an event loop."""
    return tuple(zip(groups, await plane.put(list(groups.values())), strict=True))
