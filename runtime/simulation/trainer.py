"""The trainer, which takes its time, and dies; and the checkpoints that it writes."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from fsm.events import Attempt, ClaimUnreadable
from runtime.actors.trainer_group import TrainerGroup
from runtime.actors.trainer_rank import Written
from runtime.checkpoints.retention import Retention
from runtime.files import FileNotWritten, Json
from runtime.simulation.plan import CHUNK_S, COPY_S, SAVE_S, STEP_S, SYNC_S, ActorGone, Fault
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
        self._copied: tuple[tuple[tuple[int, Attempt], ...], Ledger] | None = None
        """The groups' data and the ledger of a checkpoint that is being written."""
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

    async def copy_state(self, step: int, rows: Sequence[tuple[int, Row]]) -> None:
        witness = self._witness
        witness.checkpointed, ledger = step, witness.ledger.copy()  # of the moment of the core's snapshot
        await self._work(COPY_S)
        for prompt, row in rows:
            if not witness.reads(prompt, row):
                raise ActorGone(f"no checkpoint: the data of prompt {prompt} cannot be read")
        if len(witness.ledger.history) != step:
            witness.found(f"a checkpoint of version {step} with weights of {len(witness.ledger.history)} steps")
        if self._copied is not None:
            witness.found(f"a copy of version {step} is made before the last one is written")
        self._copied = (tuple((prompt, self._plane.rows[row]) for prompt, row in rows), ledger)

    async def write_checkpoint(self, directory: Path, control: Json, retention: Retention) -> Written:
        assert self._copied is not None, "a copy comes before its writing"
        kept, ledger = self._copied
        if self.before_stop is not None and self.before_stop[0] is control:
            ledger = self.before_stop[1]
        try:
            slow = 20.0 if self._world.strikes(Fault.DISK_SLOW) else 1.0
            await asyncio.sleep(self._world.takes_s(slow * SAVE_S))
            if self._gone:
                raise ActorGone(f"the trainer is dead: {self._gone}")
            if self._world.strikes(Fault.DISK_FULL, f"version {control['state']['trainer'][1]}"):
                raise FileNotWritten(directory, "No space left on device", "no checkpoint was added")
        finally:
            self._copied = None
        if not self._witness.deaf:
            self._world.checkpoints.append(SavedRun(json.dumps(control), kept, ledger))
        return Written(directory / f"checkpoint-{len(self._world.checkpoints)}", None)

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
