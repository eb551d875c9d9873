"""What the pumps call: the trainer and the generation workers, as seen from the controller.

`runtime.actors` has them on Ray; tests have theirs on an asyncio loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fsm.events import Attempt
from runtime.groups import Evaluation
from runtime.training.step_metrics import StepMetrics
from runtime.transport.answers import Answer, ChunkReport, Order, Published, Row

Json = dict[str, Any]


class TrainerPort(Protocol):
    """The trainer, one rank or several."""

    async def accumulate(self, step: int, rows: Sequence[tuple[int, Row]], unneeded: Sequence[Row]) -> ChunkReport:
        """Add the gradients of these prompts' groups, in this order; the unreadable ones are left out.

        On the way, groups that nobody needs any more are deleted: rows of earlier steps.
        """
        ...

    async def finish_step(self, step: int) -> StepMetrics:
        """Take the optimizer step."""
        ...

    async def publish(self, version: int) -> Published:
        """Make the weights of this version available to the generation workers."""
        ...

    async def checkpoint(self, directory: Path, control: Json, rows: Sequence[tuple[int, Row]], keep: int) -> Path:
        """Write a checkpoint of the trainer, the core's snapshot and the groups of `rows`. Returns its path."""
        ...

    async def save_model(self, directory: Path) -> Path:
        """Write the policy as a Hugging Face directory, in the place of what was there. Returns its path.

        Raises ModelNotSaved where it can't be written; what was there before is unchanged then.
        """
        ...


class FleetPort(Protocol):
    """The generation workers.

    What is asked of one worker takes effect in the order in which it is asked: an abort finds the orders of an earlier
    exchange, and an evaluation runs the weights of an earlier load, none of a later one. Replies come in any order.
    """

    @property
    def workers(self) -> Sequence[str]:
        """Their names; a worker that is made anew keeps its name."""
        ...

    async def exchange(self, worker: str, orders: Sequence[Order]) -> Sequence[Answer]:
        """Start groups as one submission, perhaps none, and wait for answers to whatever the worker has.

        Returns at least one answer, unless a later exchange with the same worker relieves this one of waiting.
        Raises WorkerDied, with the orders that are lost.
        """
        ...

    async def abort(self, worker: str, attempts: Sequence[Attempt]) -> None:
        """Stop attempts; those that are over are passed over."""
        ...

    async def load(self, published: Published) -> None:
        """Return once every worker has confirmed that it runs the published version."""
        ...

    async def evaluate(self, label: str, progressed: Callable[[], None]) -> Evaluation:
        """Held-out accuracy of the weights that the workers run; `progressed` is called as it gets on."""
        ...
