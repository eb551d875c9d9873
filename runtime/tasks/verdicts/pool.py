"""VerdictPool: verdicts of users' code, made in processes that can be killed, each fault charged to its own verdict."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runtime.tasks.base import VerdictFault
from runtime.tasks.judges import Judge, Verdict
from runtime.tasks.verdicts.clues import in_brackets, where_thread_is, who_ended_it
from runtime.tasks.verdicts.handle import Asked, Handle, start
from runtime.tasks.verdicts.process import HEARTBEAT_S
from runtime.tasks.verdicts.wire import pack_case

DEAF_S = 5.0
"""So long without a heartbeat, a process is watched; so long again, and its verdicts are made elsewhere."""
LOADING_S = 60.0
"""Loading a judge has at least so long, however short the deadline of its verdicts is."""
STARTS = 3
"""So often in a row a process may end while it loads the judge, before those who wait are told."""
INTERRUPTED = 8
"""So often a verdict is interrupted by faults of others before it is made alone."""
SHOWN_BYTES = 2000
"""Of what users' code prints, so much is kept."""
_TICK_S = 0.25
_STALLED_S = 2.0
_CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many verdicts are made at a time, and in how many processes."""

    processes: int
    threads: int
    """Of each process."""


class VerdictPool:
    """Makes its processes when the first case comes, and a new one for each that is lost. Lives on one loop."""

    def __init__(self, judge: Judge, size: PoolSize, timeout_s: float) -> None:
        self._judge = judge
        self._size = size
        self._timeout_s = timeout_s
        self._loading_s = max(timeout_s, LOADING_S)
        self._queue: deque[Asked] = deque()
        """Not sent to a process."""
        self._handles: list[Handle] = []
        """Processes that take cases, or open the judge."""
        self._starting = 0
        self._draining: list[Handle] = []
        """Processes in which a verdict hangs, and others are still being made."""
        self._dying: list[Handle] = []
        """Killed, and not gone."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._asked = 0
        self._failed_starts = 0
        """In a row."""
        self._printed = b""
        self._told = False

    async def rate(self, case: tuple[Any, ...]) -> Verdict | VerdictFault:
        """The verdict on a case, or why there is none, within the deadline and the time until a thread is free."""
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick(), name="deadlines of verdicts")
            self._ticker.add_done_callback(self._no_deadlines)
        self._asked += 1
        try:
            packed = pack_case(self._asked, case)
        except Exception as error:  # whatever another package puts into its cases
            return VerdictFault(
                f"cannot be sent the case ({type(error).__name__}: {error})", "give cases that can be pickled"
            )
        answer: asyncio.Future[Verdict | VerdictFault] = asyncio.get_running_loop().create_future()
        self._queue.append(Asked(self._asked, packed, answer, company=self._size.threads))
        self._place()
        return await answer

    def take_printed(self) -> str | None:
        """What users' code has printed, as a sentence; once, and None after that or where it prints nothing."""
        if self._told or not self._printed:
            return None
        self._told = True
        text = self._printed.decode("utf-8", "replace")
        return f"{self._judge.name} prints: {text!r:.{SHOWN_BYTES}}; whatever it prints is read and dropped"

    async def close(self) -> None:
        """Kill all processes. Who waits for a verdict is cancelled."""
        tasks = [*self._tasks, *([] if self._ticker is None else [self._ticker])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for handle in [*self._handles, *self._draining]:
            self._kill(handle)
        for asked in self._queue:
            asked.answer.cancel()
        until_s = self._now() + _CLOSE_S
        while self._dying and self._now() < until_s:
            self._reap()
            await asyncio.sleep(0.01)

    # What processes say

    def heard(self, handle: Handle, message: dict[str, Any]) -> None:
        """See Listener."""
        handle.heard_s, handle.deaf_since_s = self._now(), None
        match message:
            case {"opening": thread}:
                handle.opening_thread = thread
            case {"opened": True}:
                handle.opened = True
                self._failed_starts = 0
                self._place()
            case {"refused": str(why)}:
                handle.refused = why
            case {"began": number, "thread": thread, "tid": tid} if number in handle.asked:
                handle.asked[number].thread, handle.asked[number].tid = thread, tid
            case {"ended": number, "leaks": leaks} if number in handle.asked:
                self._settle(handle.asked.pop(number), message)
                handle.retiring |= leaks
                self._leave_if_done(handle)
                self._place()

    def ended(self, handle: Handle) -> None:
        """See Listener."""
        if handle in self._handles or handle in self._draining:
            handle.retiring = True
            self._spawn(self._bury(handle))

    def printed(self, part: bytes) -> None:
        """See Listener."""
        self._printed += part[: SHOWN_BYTES - len(self._printed)]

    def _settle(self, asked: Asked, message: dict[str, Any]) -> None:
        if "happened" in message:
            _answer(asked, VerdictFault(message["happened"], message["remedy"]))
        else:
            _answer(asked, Verdict(message["reward"], message["correct"]))

    # Cases to processes

    def _place(self) -> None:
        """Send what can be sent, those first that were interrupted.

        A case that wants less company than any process has keeps the emptiest one from others until it fits.
        """
        kept: list[Asked] = []
        reserved: set[Handle] = set()
        while self._queue:
            asked = self._queue.popleft()
            if asked.answer.done():
                continue
            able = [handle for handle in self._handles if handle.opened and not handle.retiring]
            able = sorted((handle for handle in able if handle not in reserved), key=lambda handle: len(handle.asked))
            handle = next((handle for handle in able if self._has_room(handle, asked)), None)
            if handle is not None:
                handle.send(asked, self._now())
                continue
            kept.append(asked)
            if not able or asked.company == self._size.threads:
                break
            reserved.add(able[0])
        self._queue.extendleft(reversed(kept))
        while self._queue and len(self._handles) + self._starting < self._size.processes:
            self._starting += 1
            self._spawn(self._start())

    def _has_room(self, handle: Handle, asked: Asked) -> bool:
        companies = (other.company for other in handle.asked.values())
        return len(handle.asked) < min(asked.company, self._size.threads, *companies)

    async def _start(self) -> None:
        try:
            handle = await start(self._judge, self._size.threads, self)
        except OSError as error:
            self._starting -= 1
            self._not_opened(f"no process could be started for it: {error}", certain=False)
            return
        self._starting -= 1
        self._handles.append(handle)

    def _not_opened(self, why: str, *, certain: bool) -> None:
        """A process has ended before it could rate. Whoever waits is told, unless another start may do better."""
        self._failed_starts += 1
        others = any(handle.opened for handle in self._handles)
        if not others and (certain or self._failed_starts >= STARTS):
            fault = VerdictFault(f"could not be loaded ({why})", "correct the module or the package that it names")
            for asked in self._queue:
                _answer(asked, fault)
            self._queue.clear()
        self._place()

    def _again(self, interrupted: Iterable[Asked]) -> None:
        """To be made again, before others; alone after so many times, and then not without end."""
        again: list[Asked] = []
        for asked in interrupted:
            asked.interrupted += 1
            if asked.interrupted > 2 * INTERRUPTED:
                _answer(asked, VerdictFault(f"had its process end {asked.interrupted} times", "look at what it prints"))
                continue
            if asked.interrupted > INTERRUPTED:
                asked.company = 1
            again.append(asked)
        self._queue.extendleft(reversed(again))

    # Faults

    async def _tick(self) -> None:
        last_s = self._now()
        while True:
            await asyncio.sleep(min(_TICK_S, self._timeout_s / 4))
            now_s = self._now()
            stalled, last_s = now_s - last_s > _STALLED_S, now_s
            self._reap()
            for handle in [*self._handles, *self._draining]:
                if stalled:  # this process has slept, and messages wait to be read
                    handle.heard_s = now_s
                if handle.opened:
                    await self._look_at(handle, now_s)
                elif now_s - handle.began_s > self._loading_s and not handle.retiring:
                    await self._give_up_opening(handle)

    def _no_deadlines(self, ticker: asyncio.Task[None]) -> None:
        """A defect in here must not become a verdict that is waited for without end."""
        if ticker.cancelled() or (error := ticker.exception()) is None:
            return
        for handle in [*self._handles, *self._draining]:
            self._queue.extend(handle.asked.values())
        for asked in self._queue:
            if not asked.answer.done():
                asked.answer.set_exception(error)

    async def _look_at(self, handle: Handle, now_s: float) -> None:
        if handle.ended():
            self.ended(handle)
            return
        begun = [asked for asked in handle.asked.values() if asked.thread is not None]
        late = [asked for asked in begun if now_s - asked.sent_s > self._timeout_s]
        silent_s = now_s - handle.heard_s
        others_go_on = silent_s < 4 * HEARTBEAT_S
        if late and (others_go_on or len(begun) == 1):
            await self._expire(handle, late, others_go_on=others_go_on)
        elif len(handle.asked) > 1 and silent_s > min(DEAF_S, self._timeout_s):
            self._watch_deaf(handle, begun, now_s)

    async def _expire(self, handle: Handle, late: list[Asked], *, others_go_on: bool) -> None:
        """Those that are late are at fault; where the others go on, the process ends with the last of them."""
        handle.retiring = True
        clues = await handle.dump()
        for asked in late:
            if handle.asked.pop(asked.number, None) is None:
                continue  # its verdict came at the last moment
            assert asked.thread is not None, "only what has begun is late"
            where = in_brackets(where_thread_is(clues, asked.thread))
            happened = f"gave no verdict within data.task.verdict_timeout_s = {self._timeout_s:g} s{where}"
            _answer(
                asked, VerdictFault(happened, "give it a deadline of its own, or raise data.task.verdict_timeout_s")
            )
        if not others_go_on:
            self._replace(handle)
            return
        if handle in self._handles:
            self._handles.remove(handle)
            self._draining.append(handle)
        self._leave_if_done(handle)
        self._place()

    def _watch_deaf(self, handle: Handle, begun: list[Asked], now_s: float) -> None:
        """Whoever burns the CPU while nobody else of its process can run is made again alone."""
        if handle.deaf_since_s is None:
            handle.deaf_since_s = now_s
            for asked in begun:
                asked.cpu_s = handle.cpu_s(asked.tid) or 0.0
            return
        deaf_s = now_s - handle.deaf_since_s
        if deaf_s < min(DEAF_S, self._timeout_s):
            return
        burning = [asked for asked in begun if (handle.cpu_s(asked.tid) or 0.0) - asked.cpu_s > deaf_s / 2]
        for asked in burning:
            asked.company = 1
        if not burning:
            _halve(begun)
        self._replace(handle)

    async def _bury(self, handle: Handle) -> None:
        """A process has ended by itself: find out whose fault that was."""
        how = await handle.how_it_ended()
        if handle not in self._handles and handle not in self._draining:
            return
        clues = handle.clues
        culprit = who_ended_it(clues)
        if not handle.opened:
            where = in_brackets(where_thread_is(clues, handle.opening_thread))
            did = f"{how}{where}" if culprit is None else culprit.did
            self._kill(handle)
            why = handle.refused or f"{self._judge.name}: while it was loaded, it {did}"
            self._not_opened(why, certain=handle.refused is not None)
            return
        begun = [asked for asked in handle.asked.values() if asked.thread is not None]
        guilty = [asked for asked in begun if culprit is not None and asked.thread == culprit.thread]
        if not guilty and len(begun) == 1:
            guilty = begun
        for asked in guilty:
            del handle.asked[asked.number]
            did = how if culprit is None else culprit.did
            _answer(asked, VerdictFault(did, "a verifier returns, whatever the completion is"))
        if not guilty:
            _halve(begun)
        self._replace(handle)

    async def _give_up_opening(self, handle: Handle) -> None:
        handle.retiring = True
        where = in_brackets(where_thread_is(await handle.dump(), handle.opening_thread))
        self._kill(handle)
        why = f"it was not loaded within {self._loading_s:g} s{where}"
        self._not_opened(why, certain=True)

    def _replace(self, handle: Handle) -> None:
        """End a process, and have what it had made elsewhere."""
        interrupted = list(handle.asked.values())
        self._kill(handle)
        self._again(interrupted)
        self._place()

    def _leave_if_done(self, handle: Handle) -> None:
        if handle.retiring and not handle.asked:
            self._kill(handle)

    def _kill(self, handle: Handle) -> None:
        for place in (self._handles, self._draining):
            if handle in place:
                place.remove(handle)
                self._dying.append(handle)
        handle.kill()

    def _reap(self) -> None:
        for handle in [handle for handle in self._dying if handle.ended()]:
            self._dying.remove(handle)
            handle.release()

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _answer(asked: Asked, answer: Verdict | VerdictFault) -> None:
    if not asked.answer.done():
        asked.answer.set_result(answer)


def _halve(suspects: list[Asked]) -> None:
    """Nothing tells whose fault it was: next time each has half the company."""
    for asked in suspects:
        asked.company = max(1, len(suspects) // 2)
