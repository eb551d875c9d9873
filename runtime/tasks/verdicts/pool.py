"""VerdictPool: verdicts of users' code, in processes that can be killed; each fault costs only its own verdict."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from runtime.tasks.base import Judge, Verdict, VerdictFault
from runtime.tasks.verdicts.clues import missed_deadline, place_of, who_ended_it
from runtime.tasks.verdicts.handle import Asked, Handle, PoolSize, start
from runtime.tasks.verdicts.memory import used_mib
from runtime.tasks.verdicts.process import HEARTBEAT_S
from runtime.tasks.verdicts.wire import pack_case

DEAF_S = 5.0
"""After this long without a heartbeat a process is watched; after as long again its verdicts are retried elsewhere."""
LOADING_S = 60.0
"""Shortest deadline for loading a judge, for any deadline of its verdicts."""
STARTS = 3
"""How often in a row a process may end while it loads the judge before all waiting cases fail."""
INTERRUPTED = 8
"""How often a verdict is interrupted by faults of others before it is retried alone."""
SHOWN_BYTES = 2000
"""How much of the output of users' code is kept."""
_TICK_S = 0.25
_STALLED_S = 2.0
_CLOSE_S = 2.0


class VerdictPool:
    """Starts its processes with the first case, and a new one for each that is lost. For use on one event loop."""

    def __init__(self, judge: Judge, size: PoolSize, timeout_s: float) -> None:
        self._judge = judge
        self._size = size
        """For processes that are started from now on."""
        self._timeout_s = timeout_s
        self._loading_s = max(timeout_s, LOADING_S)
        self._queue: deque[Asked] = deque()
        """Cases not yet sent to a process."""
        self._handles: list[Handle] = []
        """Processes that take cases, or are opening the judge."""
        self._starting = 0
        self._draining: list[Handle] = []
        """Processes in which a verdict hangs while others continue."""
        self._dying: list[Handle] = []
        """Processes that were killed and have not ended."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._asked = 0
        self._failed_starts = 0
        self._printed = b""
        self._printed_is_said = False
        self._notices: list[str] = []

    async def rate(self, case: tuple[Any, ...]) -> Verdict | VerdictFault:
        """The verdict on a case, or why it has none. The deadline starts when a thread is free."""
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick(), name="deadlines of verdicts")
            self._ticker.add_done_callback(self._no_deadlines)
        self._asked += 1
        try:
            packed = pack_case(self._asked, case)
        except Exception as error:  # another package's case may not be picklable
            return VerdictFault(
                f"cannot be sent the case ({type(error).__name__}: {error})", "give cases that can be pickled"
            )
        answer: asyncio.Future[Verdict | VerdictFault] = asyncio.get_running_loop().create_future()
        self._queue.append(Asked(self._asked, packed, answer, company=self._size.threads))
        self._place()
        return await answer

    def take_notice(self) -> str | None:
        """A sentence for the run's log, each once: what the verifier prints, or how its processes have to run."""
        if self._notices:
            return self._notices.pop()
        if self._printed_is_said or not self._printed:
            return None
        self._printed_is_said = True
        text = self._printed.decode("utf-8", "replace")
        return f"{self._judge.name} prints: {text!r:.{SHOWN_BYTES}}; further output is read and dropped"

    async def close(self) -> None:
        """Kill all processes and cancel all waiting calls."""
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

    # Messages of processes

    def heard(self, handle: Handle, message: dict[str, Any]) -> None:
        handle.heard_s, handle.deaf_since_s = self._now(), None
        match message:
            case {"opening": thread}:
                handle.opening_thread = thread
            case {"opened": True}:
                self._opened(handle)
            case {"refused": str(why)}:
                handle.refused = why
            case {"began": number, "thread": thread, "tid": tid} if number in handle.asked:
                handle.asked[number].thread, handle.asked[number].tid, handle.has_begun = thread, tid, True
            case {"alive": True, "blocker": blocker}:
                if blocker is None or handle.blocker is None:
                    handle.blocked_since_s = self._now()
                handle.blocker = blocker
            case {"ended": number, "leaks": leaks} if number in handle.asked:
                asked = handle.asked.pop(number)
                if "needs_main_thread" in message:
                    self._use_main_threads(asked)
                elif "happened" in message:
                    asked.give(VerdictFault(*(message[key] for key in ("happened", "remedy", "infra", "of_code"))))
                else:
                    asked.give(Verdict(message["reward"], message["correct"], message["parts"]))
                handle.retiring |= leaks
                self._leave_if_done(handle)
                self._place()

    def _opened(self, handle: Handle) -> None:
        handle.memory_mib = handle.loaded_mib = used_mib(handle.process.pid)
        if handle.loaded_mib > (most := self._size.memory_mib):
            self._kill(handle)
            uses = f"once loaded it uses {handle.loaded_mib:.0f} MiB of memory"
            self._not_opened(f"{uses}, more than cluster.reward_memory_mib = {most}; raise it", certain=True)
        else:
            handle.opened, self._failed_starts = True, 0
            self._place()

    def ended(self, handle: Handle) -> None:
        if handle in self._handles or handle in self._draining:
            handle.retiring = True
            self._spawn(self._bury(handle))

    def printed(self, part: bytes) -> None:
        self._printed += part[: SHOWN_BYTES - len(self._printed)]

    # Cases to processes

    def _place(self) -> None:
        """Send as many cases as possible, interrupted ones first.

        A case that needs an emptier process than any reserves the emptiest one until it fits.
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
            if not able or asked.company >= self._size.threads:
                break
            reserved.add(able[0])
        self._queue.extendleft(reversed(kept))
        while self._queue and len(self._handles) + self._starting < self._size.processes:
            self._starting += 1
            self._spawn(self._start())

    def _has_room(self, handle: Handle, asked: Asked) -> bool:
        companies = (other.company for other in handle.asked.values())
        return len(handle.asked) < min(asked.company, handle.threads, *companies)

    async def _start(self) -> None:
        try:
            handle = await start(self._judge, self._size, self._timeout_s, self)
        except OSError as error:
            self._starting -= 1
            self._not_opened(f"no process could be started for it: {error}; end others of this machine", certain=False)
        else:
            self._starting -= 1
            self._handles.append(handle)

    def _not_opened(self, why: str, *, certain: bool) -> None:
        """A process ended before it could rate. Fail all waiting cases with `why`, unless another start may succeed."""
        self._failed_starts += 1
        others = any(handle.opened for handle in self._handles)
        if not others and (certain or self._failed_starts >= STARTS):
            said = why if self._judge.name in why else f"{self._judge.name}: {why}"  # a refusal names it itself
            for asked in self._queue:
                asked.give(VerdictFault(said, "", of_code=True))
            self._queue.clear()
        self._place()

    def _again(self, interrupted: Iterable[Asked]) -> None:
        """Queue cases for a retry, before others. After many interruptions a case is retried alone, and then fails."""
        again: list[Asked] = []
        for asked in interrupted:
            asked.interrupted += 1
            if asked.interrupted > 2 * INTERRUPTED:
                asked.give(VerdictFault(f"had its process end {asked.interrupted} times", "look at its output"))
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
                if stalled:  # this process was suspended, and unread messages wait
                    handle.heard_s = now_s
                if handle.opened:
                    await self._look_at(handle, now_s)
                elif now_s - handle.began_s > self._loading_s and not handle.retiring:
                    await self._give_up_opening(handle)

    def _no_deadlines(self, ticker: asyncio.Task[None]) -> None:
        """If the ticker fails, fail all cases: without deadlines they might wait for ever."""
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
        begun, silent_s = handle.begun, now_s - handle.heard_s
        handle.memory_mib = used_mib(handle.process.pid)
        if handle.memory_mib > self._size.memory_mib:
            await self._free_memory(handle, begun)
            return
        late = [asked for asked in begun if now_s - asked.sent_s > self._timeout_s]
        if handle.blocker is not None:  # the others only wait for it
            guilty = [asked for asked in begun if asked.thread == handle.blocker]
            late = [asked for asked in late if asked in guilty]
            if len(handle.asked) > len(guilty) and now_s - handle.blocked_since_s > min(DEAF_S, self._timeout_s / 2):
                self._part(handle, guilty, begun)
                return
        others_go_on = silent_s < 4 * HEARTBEAT_S
        if late and (others_go_on or len(begun) == 1):
            await self._expire(handle, late, others_go_on=others_go_on)
        elif silent_s > min(DEAF_S, self._timeout_s) and not (len(begun) == len(handle.asked) == 1):
            self._watch_deaf(handle, begun, now_s)
        elif handle.not_begun(now_s - self._timeout_s):
            self._give_up_on(handle, begun)

    async def _expire(self, handle: Handle, late: list[Asked], *, others_go_on: bool) -> None:
        """Fail the late cases. If the others continue, the process ends after the last of them."""
        handle.retiring = True
        clues = await handle.dump()
        for asked in late:
            if handle.asked.pop(asked.number, None) is None:
                continue  # its verdict arrived meanwhile
            assert asked.thread is not None, "only what has begun is late"
            place = place_of(clues, asked.thread)
            asked.give(VerdictFault(*missed_deadline(self._timeout_s, place)))
        if not others_go_on:
            self._replace(handle)
            return
        self._drain(handle)
        self._place()

    def _watch_deaf(self, handle: Handle, begun: list[Asked], now_s: float) -> None:
        """Retry alone the cases that used the CPU while no other thread of their process could run."""
        if handle.deaf_since_s is None:
            handle.deaf_since_s = now_s
            handle.note_cpu(begun)
            return
        deaf_s = now_s - handle.deaf_since_s
        if deaf_s < min(DEAF_S, self._timeout_s):
            return
        if guilty := handle.holders(begun):
            self._part(handle, guilty, begun)
        else:
            self._give_up_on(handle, begun)

    def _give_up_on(self, handle: Handle, begun: list[Asked]) -> None:
        """A process begins no cases: a thread that a verdict left there keeps the interpreter, or a worker is lost."""
        for asked in handle.not_begun(self._now()) if not handle.has_begun else ():
            asked.unbegun += 1
            if asked.unbegun >= STARTS:
                happened = f"was never begun: {STARTS} new processes had a free thread for it and did not answer"
                asked.give(VerdictFault(happened, "look at what its module starts while it is imported"))
        self._part(handle, [], begun)

    def _part(self, handle: Handle, guilty: list[Asked], begun: list[Asked]) -> None:
        """Retry all cases of a process elsewhere: the guilty alone. If nothing says who is, half as many together."""
        for asked in guilty or begun:
            asked.company = 1 if guilty else max(1, len(begun) // 2)
        self._replace(handle)

    async def _free_memory(self, handle: Handle, begun: list[Asked]) -> None:
        """A process uses too much. A verdict is at fault if it was alone there, and took most of what was left."""
        most_mib = self._size.memory_mib
        if len(begun) == 1 and begun[0].memory_mib < (handle.loaded_mib + most_mib) / 2:
            (asked,) = begun
            place = place_of(await handle.dump(), asked.thread or 0)
            if handle.asked.pop(asked.number, None) is not None:
                happened = f"had its process use more than cluster.reward_memory_mib = {most_mib} MiB of memory{place}"
                asked.give(VerdictFault(happened, "let it use less memory, or raise cluster.reward_memory_mib"))
            self._replace(handle)
        else:
            self._part(handle, [], begun)

    def _use_main_threads(self, asked: Asked) -> None:
        """A verdict has set a signal handler, which needs the main thread: from now on a process has one verdict."""
        if self._size.threads > 1:
            self._size = replace(self._size, threads=1)
            self._notices.append(
                f"{self._judge.name} sets signal handlers, which needs the main thread of a process: each process "
                f"computes one verdict at a time, {self._size.processes} of them (cluster.reward_processes)"
            )
            for handle in [*self._handles]:
                handle.retiring = True
                self._drain(handle)
        asked.company = 1
        self._queue.appendleft(asked)

    def _drain(self, handle: Handle) -> None:
        """Give a process no more cases, and end it after those that it has."""
        if handle in self._handles:
            self._handles.remove(handle)
            self._draining.append(handle)
        self._leave_if_done(handle)

    async def _bury(self, handle: Handle) -> None:
        """A process ended by itself: find the case at fault."""
        how = await handle.how_it_ended()
        if handle not in self._handles and handle not in self._draining:
            return
        clues = handle.clues
        culprit = who_ended_it(clues)
        if not handle.opened:
            did = how + place_of(clues, handle.opening_thread) if culprit is None else culprit.did
            self._kill(handle)
            why = f"while it was loaded, it {did}; correct it there"
            self._not_opened(handle.refused or why, certain=handle.refused is not None)
            return
        begun = handle.begun
        guilty = [asked for asked in begun if culprit is not None and asked.thread == culprit.thread]
        if not guilty and len(begun) == 1:
            guilty = begun
        for asked in guilty:
            del handle.asked[asked.number]
            did = how if culprit is None else culprit.did
            asked.give(VerdictFault(did, "make the verifier return for any completion"))
        self._part(handle, guilty, begun)

    async def _give_up_opening(self, handle: Handle) -> None:
        handle.retiring = True
        place = place_of(await handle.dump(), handle.opening_thread)
        self._kill(handle)
        self._not_opened(f"it was not loaded within {self._loading_s:g} s{place}; have it start faster", certain=True)

    def _replace(self, handle: Handle) -> None:
        """Kill a process and retry its cases elsewhere."""
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
