"""Liveness probes: whether an actor answers, told from one that is busy, and from a pause of the process that asks."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ray.exceptions import RayActorError

_RPC_FAILED = re.compile(r"\bRpcError\b")
"""In Ray's ActorUnavailableError, if it tried to reach the actor; it names no connection to one that restarts."""


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """How often an actor is asked, and how long it may be silent, in seconds."""

    interval_s: float
    timeout_s: float


class Stopwatch:
    """Adds up time in which this process ran: a pause of its own says nothing about others."""

    def __init__(self, most_s: float) -> None:
        """most_s: the most that counts of the time between two looks."""
        self._most_s = most_s
        self._seen_s = asyncio.get_running_loop().time()
        self.elapsed_s = 0.0

    def look(self) -> float:
        """Seconds so far."""
        now_s = asyncio.get_running_loop().time()
        self.elapsed_s += min(now_s - self._seen_s, self._most_s)
        self._seen_s = now_s
        return self.elapsed_s

    def reset(self) -> None:
        """Begin again."""
        self._seen_s, self.elapsed_s = asyncio.get_running_loop().time(), 0.0


async def is_silent(reply: asyncio.Future[Any], times: ProbeTimes) -> bool:
    """Wait for a reply, at most `timeout_s`; True if none has come. It is cancelled then."""
    silent = Stopwatch(2.0 * times.interval_s)
    while (left_s := times.timeout_s - silent.look()) > 0:
        done, _ = await asyncio.wait([reply], timeout=min(times.interval_s, left_s))
        if done:
            return False
    reply.cancel()
    return True


async def unhealthy(ask: Callable[[], Awaitable[float]], times: ProbeTimes, hang_s: float) -> str:
    """Probe a generation worker; returns why it is to be restarted. Raises RayActorError if it dies.

    `ask` sends a probe, whose reply is `GenerationWorker.ping`'s. The first is waited for without limit: the process
    may wait for a node.
    """
    await ask()
    while True:
        await asyncio.sleep(times.interval_s)
        reply = asyncio.ensure_future(ask())
        if await is_silent(reply, times):
            silent = f"{times.timeout_s:g} s (cluster.probe_timeout_s)"
            return f"its process has not answered for {silent}: it is frozen or unreachable"
        if (stood_s := reply.result()) > hang_s:
            return f"its event loop has stood still for {stood_s:.0f} s (cluster.hang_timeout_s): its engine hangs"


async def keep_alive(
    ask: Callable[[], Awaitable[object]], kill: Callable[[], None], times: ProbeTimes, lost: Callable[[str], None]
) -> NoReturn:
    """Probe an actor that Ray restarts when it ends: `kill` it if it is silent, and tell `lost` why it is restarted.

    `ask` sends a probe, whose reply differs from life to life of the actor: Ray may restart one between two probes. An
    actor that starts is waited for without limit: it may wait for a node. One that Ray holds to
    be alive and cannot connect to is frozen or unreachable.
    """
    away = Stopwatch(0.5 * times.timeout_s)
    while True:
        try:
            life = await ask()
            while True:
                await asyncio.sleep(times.interval_s)
                reply = asyncio.ensure_future(ask())
                if await is_silent(reply, times):
                    lost(f"it has not answered for {times.timeout_s:g} s (cluster.probe_timeout_s)")
                    kill()
                    break
                try:
                    before, life = life, reply.result()
                except RayActorError as error:
                    lost(f"it died: {error}")
                    break
                if life != before:
                    lost("it died")
            away.reset()
        except RayActorError as error:
            if not _RPC_FAILED.search(str(error)):  # it is being restarted
                away.reset()
            elif away.look() > times.timeout_s:
                lost(f"Ray could not connect to it for {times.timeout_s:g} s (cluster.probe_timeout_s)")
                kill()
                away.reset()
            await asyncio.sleep(times.interval_s)
