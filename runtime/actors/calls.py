"""Calls to a generation worker: they begin in order and have deadlines; its loop and its engine are watched."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.exceptions import RayError

from fsm.errors import InvariantBroken
from runtime.taxonomy import cause_of
from runtime.usual import UsualTime


class CallOrder:
    """Makes calls to an asyncio actor begin in the order in which they were sent.

    Ray promises that only for an actor without coroutines. It hands calls to an asyncio actor over as they arrive, and
    two calls of one caller can arrive in the other order: one of twelve did when arguments differed in size. So the one
    caller numbers its calls from 0 as it sends them, and the actor lets a call begin when those before it have.

    A call would wait forever only if an earlier one never began. Ray begins every call to a living actor, provided that
    its arguments are no references themselves, whose values Ray would wait for first. If the actor is lost, the caller
    is told and ends it, with all calls that wait.
    """

    def __init__(self) -> None:
        self._next = 0
        """The number of the call that may begin."""
        self._early: dict[int, asyncio.Future[None]] = {}
        """Calls that arrived before one that was sent earlier."""

    async def begin(self, number: int) -> None:
        """Return once every call with a lower number has begun, that is, run until it first waited.

        Raises InvariantBroken for a number that came before.
        """
        if number < self._next or number in self._early:
            raise InvariantBroken(f"call {number} came twice; the next was to be {self._next}")
        if number > self._next:
            self._early[number] = asyncio.get_running_loop().create_future()
            await self._early[number]
        self._early.pop(number, None)
        self._next = number + 1
        if self._next in self._early:
            self._early[self._next].set_result(None)


class LoopWatch:
    """Tells, from another thread, for how long an event loop has not turned."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_s: float | None = None
        """When the loop was last asked to turn; None once it has."""

    def watch(self) -> None:
        """Watch the loop that runs now."""
        self._loop = asyncio.get_running_loop()

    def look(self) -> float:
        """Seconds for which the loop has not turned since an earlier look; 0 if it has, or if none is watched."""
        if self._loop is None:
            return 0.0
        now_s = time.monotonic()
        if self._asked_s is not None:
            return now_s - self._asked_s
        self._asked_s = now_s
        self._loop.call_soon_threadsafe(self._turned)
        return 0.0

    def _turned(self) -> None:
        self._asked_s = None


class EngineLost(Exception):
    """The engine cannot go on, by no fault of a prompt: out of memory, a lost device. The worker must be replaced."""


@contextmanager
def engine_errors() -> Iterator[None]:
    """Raise EngineLost for an infra failure of the engine. Errors of other actors are theirs."""
    try:
        yield
    except (RayError, EngineLost):
        raise
    except Exception as error:
        if not cause_of(error).infra:
            raise
        raise EngineLost(f"its engine failed: {type(error).__name__}: {error!s:.600}") from error


async def within(call: Any, usual: UsualTime, what: str, setting: str) -> Any:
    """The result of a call, whose duration is remembered. Raises TimeoutError with the reason."""
    loop = asyncio.get_running_loop()
    began_s, deadline_s = loop.time(), usual.deadline_s
    try:
        async with asyncio.timeout(deadline_s) as limit:
            result = await call
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"it did not {what} within {usual.said} ({setting})") from None
        raise
    usual.took(loop.time() - began_s)
    return result


def is_cancelled() -> bool:
    """Whether the task that runs this was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
