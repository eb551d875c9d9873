"""An environment process, seen from the generation worker: calls to its episodes, deadlines, and whom a fault costs."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.tasks.base import VerdictFault
from runtime.tasks.environments.code import EnvironmentCode
from runtime.tasks.verdicts.clues import place_of, who_ended_it
from runtime.tasks.verdicts.handle import Asked, Handle, start_program
from runtime.tasks.verdicts.memory import used_mib
from runtime.tasks.verdicts.pool import DEAF_S, LOADING_S
from runtime.tasks.verdicts.process import HEARTBEAT_S
from runtime.tasks.verdicts.wire import pack_case

_TICK_S = 0.25
_STALLED_S = 2.0
_DEADLINE = "data.task.timeout_s"


class EnvironmentLost(Exception):
    """An episode ended through no fault of its own: its process did, or what its tool calls is out of reach.

    An infra failure: the attempt is retried (L7).
    """


@dataclass(frozen=True, slots=True)
class _Lost:
    why: str


class NotMade(VerdictFault):
    """The fault of every call where the environment itself could not be made."""


class EpisodeHost:
    """A process, and the episodes whose state it keeps. Made by `start`; for use on one event loop."""

    def __init__(
        self, code: EnvironmentCode, timeout_s: float, memory_mib: int, printed: Callable[[bytes], None]
    ) -> None:
        self._code = code
        self._memory_mib = memory_mib
        self._timeout_s = timeout_s
        self._loading_s = max(timeout_s, LOADING_S)
        self._take_printed = printed
        self._handle: Handle
        self._calls = 0
        self._episodes: set[int] = set()
        self._opening: list[asyncio.Future[None]] = []
        """Calls that wait until the environment is made."""
        self._over: _Lost | VerdictFault | None = None
        """Why it takes no more calls."""
        self._ticker: asyncio.Task[None]

    async def start(self) -> None:
        """Start the process. Raises OSError."""
        self._handle = await start_program(
            "runtime.tasks.environments.program", self._code, (self._memory_mib,), 0, self
        )
        self._ticker = asyncio.create_task(self._tick(), name=f"deadlines of {self._handle.process.pid}")

    @property
    def load(self) -> int:
        """How many episodes it keeps."""
        return len(self._episodes)

    @property
    def takes_more(self) -> bool:
        """Whether more episodes may be opened here."""
        return self._over is None and not self._handle.retiring

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        return self._ticker.done()

    async def opened(self) -> None:
        """Wait until the environment is made, or cannot be."""
        if not self._handle.opened and self._over is None:
            opened = asyncio.get_running_loop().create_future()
            self._opening.append(opened)
            await opened

    async def open(self, split: str, index: int) -> tuple[int, dict[str, Any] | VerdictFault]:
        """Open an episode: its number, and the reply. Raises EnvironmentLost."""
        await self.opened()
        asked = self._send("open", split, index)
        self._episodes.add(asked.number)
        try:
            return asked.number, await self._reply(asked)
        except asyncio.CancelledError:
            self.release(asked.number)
            raise

    async def call(self, name: str, *arguments: Any) -> dict[str, Any] | VerdictFault:
        """The reply to a call, or what was wrong with it. Raises EnvironmentLost."""
        return await self._reply(self._send(name, *arguments))

    def release(self, episode: int) -> None:
        """End an episode, and cancel what it does. Does not wait."""
        if episode in self._episodes:
            self._episodes.remove(episode)
            if self._over is None:
                self._send("close", episode)
            self._leave_if_done()

    async def close(self) -> None:
        """Kill the process."""
        self._end(_Lost("the run is over"))
        await asyncio.gather(self._ticker, return_exceptions=True)

    def _send(self, name: str, *arguments: Any) -> Asked:
        self._calls += 1
        asked = Asked(self._calls, b"", asyncio.get_running_loop().create_future(), company=1)
        if self._over is not None:
            asked.answer.set_result(self._over)
            return asked
        asked.packed = pack_case(asked.number, (name, *arguments))
        self._handle.send(asked, self._now())
        return asked

    async def _reply(self, asked: Asked) -> dict[str, Any] | VerdictFault:
        answer: dict[str, Any] | VerdictFault | _Lost = await asked.answer
        if isinstance(answer, _Lost):
            raise EnvironmentLost(f"{self._code.name}: {answer.why}")
        return answer

    # Messages of the process

    def heard(self, handle: Handle, message: dict[str, Any]) -> None:
        handle.heard_s, handle.deaf_since_s = self._now(), None
        match message:
            case {"opening": thread}:
                handle.opening_thread = thread
            case {"opened": True}:
                handle.opened = True
                self._wake()
            case {"refused": str(why)}:
                handle.refused = why
            case {"began": number, "thread": thread, "tid": tid} if number in handle.asked:
                handle.asked[number].thread, handle.asked[number].tid = thread, tid
            case {"ended": number} if number in handle.asked:
                wrong = "happened" in message
                fault = VerdictFault(message["happened"], message["remedy"], message["infra"]) if wrong else None
                answer = message if fault is None else fault
                _settle(handle.asked.pop(number), answer)
                self._leave_if_done()

    def ended(self, handle: Handle) -> None:
        handle.retiring = True
        handle.tasks.append(asyncio.create_task(self._bury(), name=f"end of {handle.process.pid}"))

    def printed(self, part: bytes) -> None:
        self._take_printed(part)

    # Deadlines and faults

    async def _tick(self) -> None:
        try:
            await self._watch()
        except Exception as error:
            self._end(_Lost(f"its deadlines could not be watched: {error!r}"))
            raise
        while not self._handle.ended():
            await asyncio.sleep(0.02)
        self._handle.release()

    async def _watch(self) -> None:
        last_s, handle = self._now(), self._handle
        while self._over is None:
            await asyncio.sleep(min(_TICK_S, self._timeout_s / 4))
            now_s = self._now()
            if now_s - last_s > _STALLED_S:  # this process was suspended, and unread messages wait
                handle.heard_s = now_s
            last_s = now_s
            if handle.ended():
                await self._bury()
            elif not handle.opened:
                if now_s - handle.began_s > self._loading_s:
                    place = place_of(await handle.dump(), handle.opening_thread)
                    self._end(NotMade(f"was not made within {self._loading_s:g} s{place}", "make it start faster"))
            else:
                await self._look(now_s)

    async def _look(self, now_s: float) -> None:
        handle = self._handle
        if used_mib(handle.process.pid) > self._memory_mib:
            self._end_for_memory()
            return
        silent_s = now_s - handle.heard_s
        late = [asked for asked in handle.asked.values() if now_s - asked.sent_s > self._timeout_s]
        if late and (silent_s < 4 * HEARTBEAT_S or len(handle.asked) == 1):
            await self._expire(late)
        elif silent_s > min(DEAF_S, self._timeout_s):
            await self._watch_deaf(now_s)

    async def _expire(self, late: Sequence[Asked]) -> None:
        """Fail late calls. The process gets no more episodes, and ends after the last of the others."""
        handle = self._handle
        handle.retiring = True
        clues = await handle.dump()
        for asked in late:
            if handle.asked.pop(asked.number, None) is not None:
                place = "" if asked.thread is None else place_of(clues, asked.thread)
                happened = f"did not return within {_DEADLINE} = {self._timeout_s:g} s{place}"
                _settle(asked, VerdictFault(happened, f"give the tool its own deadline, or raise {_DEADLINE}"))
        self._leave_if_done()

    async def _watch_deaf(self, now_s: float) -> None:
        """Find the call that keeps the interpreter to itself, as a runaway regular expression does."""
        handle = self._handle
        running = [asked for asked in handle.asked.values() if asked.thread is not None]
        if handle.deaf_since_s is None:
            handle.deaf_since_s = now_s
            handle.note_cpu(running)
            return
        deaf_s = now_s - handle.deaf_since_s
        if deaf_s < min(DEAF_S, self._timeout_s):
            return
        guilty = handle.holders(running)
        clues = await handle.dump()
        for asked in guilty:
            assert asked.thread is not None, "it runs"
            happened = f"kept the interpreter from all others for {deaf_s:.0f} s{place_of(clues, asked.thread)}"
            _settle(handle.asked.pop(asked.number), VerdictFault(happened, "have it wait, or compute in a subprocess"))
        self._end(_Lost("another rollout kept its process busy" if guilty else "its process stopped answering"))

    def _end_for_memory(self) -> None:
        """Nothing tells which of several calls took the memory; a single one did."""
        running = [asked for asked in self._handle.asked.values() if asked.thread is not None]
        used = f"more than data.task.memory_mib = {self._memory_mib} MiB"
        if len(running) == 1:
            fault = VerdictFault(f"made its process use {used}", "have it use less, or raise data.task.memory_mib")
            _settle(self._handle.asked.pop(running[0].number), fault)
        self._end(_Lost(f"its process used {used}"))

    async def _bury(self) -> None:
        """The process ended by itself: find the call at fault."""
        handle = self._handle
        how = await handle.how_it_ended()
        if self._over is not None:
            return
        culprit = who_ended_it(handle.clues)
        did = how if culprit is None else culprit.did
        if not handle.opened:
            why = handle.refused or f"{self._code.name}: while it was made, it {did}; correct it there"
            self._end(NotMade(why, "", of_code=True))
            return
        running = [asked for asked in handle.asked.values() if asked.thread is not None]
        guilty = [asked for asked in running if culprit is not None and asked.thread == culprit.thread]
        if not guilty and culprit is None and len(running) == 1:
            guilty = running
        for asked in guilty:
            del handle.asked[asked.number]
            _settle(asked, VerdictFault(did, "make it return whatever the policy says"))
        self._end(_Lost(f"its process is gone, which another rollout's call or the system ended: it {did}"))

    def _leave_if_done(self) -> None:
        if self._handle.retiring and not self._episodes and not self._handle.asked:
            self._end(_Lost("its process is retired"))

    def _end(self, why: _Lost | VerdictFault) -> None:
        """Kill the process; calls in progress and later ones get `why`."""
        if self._over is None:
            self._over = why
        self._handle.kill()
        for asked in self._handle.asked.values():
            _settle(asked, self._over)
        self._handle.asked.clear()
        self._wake()

    def _wake(self) -> None:
        for opened in self._opening:
            if not opened.done():
                opened.set_result(None)
        self._opening.clear()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _settle(asked: Asked, answer: object) -> None:
    if not asked.answer.done():  # it is, if its rollout was aborted
        asked.answer.set_result(answer)
