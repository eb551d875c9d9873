"""What the pumps call: the trainer and the generation workers, as seen from the controller.

`runtime.actors` has them on Ray; tests have theirs on an asyncio loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from fsm.events import Attempt
from runtime.answers import Answer, ChunkReport, Order, Row
from runtime.generation.evaluation import Evaluation
from runtime.training.step_metrics import StepMetrics
from runtime.weight_sync import Publication

Json = dict[str, Any]


class TrainerPort(Protocol):
    """The trainer, one rank or several."""

    async def accumulate(self, step: int, rows: Sequence[tuple[int, Row]]) -> ChunkReport:
        """Add the gradients of these prompts' groups, in this order; the unreadable ones are left out."""
        ...

    async def finish_step(self, step: int) -> StepMetrics:
        """Take the optimizer step."""
        ...

    async def publish(self, version: int) -> Publication:
        """Make the weights of this version available to the generation workers."""
        ...

    async def checkpoint(self, directory: Path, control: Json, rows: Sequence[tuple[int, Row]], keep: int) -> Path:
        """Write a checkpoint of the trainer, the core's snapshot and the groups of `rows`. Returns its path."""
        ...


class FleetPort(Protocol):
    """The generation workers."""

    @property
    def workers(self) -> Sequence[str]:
        """Their names; a worker that is made anew keeps its name."""
        ...

    def generate(self, worker: str, orders: Sequence[Order]) -> AsyncIterator[Sequence[Answer]]:
        """Start groups as one submission; yields each group's answer, several at a time where they come together.

        Raises WorkerDied, after which the orders that were not answered are lost.
        """
        ...

    async def abort(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """Stop attempts; those that are over are passed over."""
        ...

    async def load(self, publication: Publication) -> None:
        """Return once every worker has confirmed that it runs the publication's version."""
        ...

    async def evaluate(self, label: str) -> Evaluation:
        """Held-out accuracy of the weights that the workers run."""
        ...
