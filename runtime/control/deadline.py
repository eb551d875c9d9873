"""Deadlines of calls to the trainer, which is not restarted by itself: when one passes, the whole run is restarted."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from fsm.errors import EvenstepError
from runtime.usual import UsualTime

T = TypeVar("T")


class TrainerSilent(EvenstepError):
    """The trainer has not finished a call within its deadline: a rank hangs, or is frozen."""


@dataclass(slots=True)
class Deadline:
    """The deadline of one kind of call, and the key that sets it."""

    key: str
    usual: UsualTime

    async def of(self, what: str, work: Awaitable[T]) -> T:
        """The result of a call. Raises TrainerSilent, naming `what` it was to do."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(self.usual.deadline_s) as limit:
                result = await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise TrainerSilent(
                f"the trainer has not finished {what} within {self.usual.said} ({self.key}): a rank hangs or is frozen "
                f"(py-spy dump shows where); if it only is slow, raise {self.key}"
            ) from None
        self.usual.took(loop.time() - began_s)
        return result


def of_training(configured_s: float | None = None) -> Deadline:
    """Of a chunk, an optimizer step or a copy of the state. The first one of a run may compile and allocate long."""
    return Deadline("cluster.train_timeout_s", UsualTime(floor_s=3600.0, factor=10.0, configured=configured_s))


def of_publishing(configured_s: float | None = None) -> Deadline:
    """Of publishing weights."""
    return Deadline("cluster.sync_timeout_s", UsualTime(floor_s=900.0, factor=10.0, configured=configured_s))
