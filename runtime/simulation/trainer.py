"""The trainer, which takes its time, and dies; and the checkpoints that it writes."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from fsm.events import ClaimUnreadable
from runtime.actors.trainer_group import TrainerGroup
from runtime.files import FileNotWritten, Json
from runtime.simulation.faults import ActorGone, Fault
from runtime.simulation.plan import CHUNK_S, SAVE_S, STEP_S, SYNC_S
from runtime.simulation.witness import Witness
from runtime.simulation.world import Ledger, SavedRun, SimulatedPlane, SimulatedWorld
from runtime.training.step_metrics import StepMetrics
from runtime.transport.answers import Published, Row


class SimulatedTrainer(TrainerGroup):
    """What pumps know of `TrainerGroup`, and no Ray. Its weights are the steps that it has taken."""

    def __init__(self, world: SimulatedWorld, witness: Witness, plane: SimulatedPlane) -> None:
        self._world = world
        self._witness = witness
        self._plane = plane
        self._gone = ""
        self._groups: list[int] = []
        """Prompts whose gradients are accumulated."""
        self.before_stop: tuple[Json, Ledger] | None = None
        """The core's snapshot before the event that stopped it, and the ledger of that moment."""

    async def accumulate(
        self, step: int, rows: Sequence[tuple[int, Row]], unneeded: Sequence[Row]
    ) -> Sequence[ClaimUnreadable]:
        self._plane.delete(unneeded)
        self._witness.trains(step, tuple(prompt for prompt, _ in rows))
        slow = 10.0 if self._world.strikes(Fault.TRAINER_SLOW) else 1.0
        await self._work(slow * CHUNK_S)
        readable = {prompt for prompt, row in rows if self._witness.reads(prompt, row)}
        unreadable = [prompt for prompt, _ in rows if prompt not in readable]
        self._groups += [prompt for prompt, _ in rows if prompt in readable]
        await self._work(slow * CHUNK_S)
        self._witness.claims(unreadable)
        self._witness.working = ""
        return [ClaimUnreadable(prompt, f"prompt {prompt}: the group store has no such row") for prompt in unreadable]

    async def finish_step(self, step: int) -> StepMetrics:
        self._witness.finishes(step)
        await self._work(STEP_S)
        groups, self._groups = self._groups, []
        self._witness.trained(tuple(groups))
        self._witness.working = ""
        return metrics_of(step, empty=self._world.strikes(Fault.NO_TOKENS, f"step {step}"))

    async def publish(self, version: int) -> Published:
        if self._world.strikes(Fault.PUBLISH_FAILS, f"version {version}"):
            self._gone = "it died as it published its weights"
        await self._work(SYNC_S)
        return Published(version, None)

    async def checkpoint(self, directory: Path, control: Json, rows: Sequence[tuple[int, Row]], keep: int) -> Path:
        witness, version = self._witness, control["state"]["trainer"][1]
        ledger = witness.ledger.copy()
        if self.before_stop is not None and self.before_stop[0] is control:
            ledger = self.before_stop[1]
        witness.checkpointed = version
        if self._world.strikes(Fault.DISK_FULL, f"version {version}"):
            raise FileNotWritten(directory, "No space left on device", "no checkpoint was added")
        await self._work(SAVE_S)
        for prompt, row in rows:
            if not witness.reads(prompt, row):
                raise ActorGone(f"no checkpoint: the data of prompt {prompt} cannot be read")
        if len(witness.ledger.history) != version:
            witness.found(f"a checkpoint of version {version} with weights of {len(witness.ledger.history)} steps")
        if not witness.deaf:
            kept = tuple((prompt, self._plane.rows[row]) for prompt, row in rows)
            self._world.checkpoints.append(SavedRun(json.dumps(control), kept, ledger))
        return directory / f"checkpoint-{len(self._world.checkpoints)}"

    async def save_model(self, directory: Path) -> Path:
        await self._work(SAVE_S)
        return directory

    async def _work(self, usual_s: float) -> None:
        """Take some time. Raises ActorGone for a trainer that is dead or dies now."""
        await asyncio.sleep(self._world.takes_s(usual_s))
        if not self._gone and self._world.strikes(Fault.TRAINER_DIES):
            self._gone = "it was killed"
        if self._gone:
            raise ActorGone(f"the trainer is dead: {self._gone}")


def metrics_of(step: int, *, empty: bool = False) -> StepMetrics:
    """Of a step that trained on one token, or on none."""
    named = {field.name: 0.0 for field in dataclasses.fields(StepMetrics)}
    counts = {"tokens": 0, "masked_sequences": 8} if empty else {"tokens": 1, "sequences": 1, "masked_sequences": 0}
    known = {
        "version": step + 1,
        "reference_kl": None,
        "groups": 1,
        "staleness_max": 0,
        "sequences": 0,
        "not_finite": None,
    }
    return StepMetrics(**{**named, **known, **counts})  # type: ignore[arg-type]
