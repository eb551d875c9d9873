"""Calls to an asyncio actor begin in the order in which they were sent.

Ray promises that of an actor without coroutines alone. It hands calls to an asyncio actor over as they arrive, and two
calls of one caller can arrive in the other order: one of twelve did so where arguments differed in size. So the caller
numbers its calls, and the actor lets one begin when those before it have.
"""

from __future__ import annotations

import asyncio

from fsm.errors import InvariantBroken


class CallOrder:
    """At the actor. There is one caller, which numbers its calls from 0 in the same breath as it sends them.

    A call waits for calls that were sent before it, so it waits for ever only where one of those is never begun. Ray
    begins every call to an actor that lives, provided that its arguments hold no references at their top, for whose
    values Ray would wait first; where the actor is lost, the caller is told and ends it, and those who wait with it.
    """

    def __init__(self) -> None:
        self._next = 0
        """The number of the call that may begin."""
        self._early: dict[int, asyncio.Future[None]] = {}
        """Calls that arrived before one that was sent earlier."""

    async def begin(self, number: int) -> None:
        """Return once every call with a lower number has begun, which is to say run until it first waited.

        Raises InvariantBroken for a number that was there before.
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
