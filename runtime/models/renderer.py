"""Chat templates are rendered in a process that can be killed, since they may loop for ever or take all memory.

The process runs `render_process`. It is started, watched and killed by the parts that do so for verdicts
(`tasks.verdicts.handle`), on an event loop in a thread, so that callers may be in any thread, with a loop or without.
"""

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

from runtime.models.render_process import STOPPED, Rendering, too_much_memory
from runtime.tasks.environments.host import EnvironmentLost
from runtime.tasks.verdicts.clues import who_ended_it
from runtime.tasks.verdicts.handle import Asked, Handle, start_program
from runtime.tasks.verdicts.memory import used_mib
from runtime.tasks.verdicts.pool import LOADING_S
from runtime.tasks.verdicts.wire import pack_case

MEMORY_MIB = 1024
"""What the process may use; without templates it uses about 60."""
_TRIES = 3
"""Processes that may end, or be ended by others, during one request."""
_TICK_S = 0.1
_GRACE_S = 1.0
"""Processor time after which a process is killed that does not notice its deadline, as in one long multiplication."""


class TemplateFault(Exception):
    """Conversation number `at` of a request was not rendered.

    kind: as `render_process` has them. line: of the template, if known.
    """

    def __init__(self, at: int, kind: str, happened: str, line: int | None = None) -> None:
        super().__init__(happened)
        self.at, self.kind, self.happened, self.line = at, kind, happened, line


class RenderingLost(EnvironmentLost):
    """Nothing was rendered, through no fault of a template: no process could be started. An infra failure."""


class _Gone(Exception):
    """The process ended, or stopped answering; the message says how."""


class Renderer:
    """One process, started with the first request, and a new one after each that had to be killed."""

    def __init__(self, memory_mib: int = MEMORY_MIB) -> None:
        self._memory_mib = memory_mib
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn: asyncio.Lock
        """Requests have the process in the order in which they came."""
        self._process: _RenderProcess | None = None

    def render(self, asked: Rendering) -> list[str]:
        """The texts of the first conversations, one or more: the rest of a request that gets long is left out.

        Raises TemplateFault for the first that has none, and RenderingLost.
        """
        return self.begin(asked).result()

    def begin(self, asked: Rendering) -> Future[list[str]]:
        """Begin to render; the result is that of `render`. `close` cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop, self._turn = asyncio.new_event_loop(), asyncio.Lock()
                threading.Thread(target=_run, args=(self._loop,), name="chat templates", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(self._render(asked), self._loop)

    def close(self) -> None:
        """Kill the process and cancel what is being rendered. A later request starts another process."""
        with self._lock:  # until the end, or the next request would meet the old process
            if self._loop is not None:
                asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None

    async def _close(self) -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._end_process()

    async def _render(self, asked: Rendering) -> list[str]:
        async with self._turn:
            ended: list[str] = []
            while len(ended) < _TRIES:
                try:
                    if self._process is None:
                        self._process = await _RenderProcess.start(self._memory_mib)
                    return await self._process.render(asked)
                except OSError as error:
                    raise RenderingLost(f"no process could be started to render the chat template: {error}") from error
                except _Gone as gone:
                    ended.append(str(gone))
                    await self._end_process()
                except TemplateFault:
                    if self._process is not None and self._process.overdue:
                        await self._end_process()
                    raise
            raise TemplateFault(0, STOPPED, f"{ended[-1]}, {_TRIES} times in a row")

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.kill()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


class _RenderProcess:
    """The process, seen from the loop that started it."""

    def __init__(self, memory_mib: int) -> None:
        self.overdue = False
        """It has taken too long, or too much memory, and must be killed."""
        self._memory_mib = memory_mib
        self._handle: Handle
        self._texts: list[str] = []
        self._ended: asyncio.Future[dict[str, Any]]
        self._is_gone = False

    @classmethod
    async def start(cls, memory_mib: int) -> "_RenderProcess":
        """Raises OSError."""
        process = cls(memory_mib)
        process._handle = await start_program("runtime.models.render_process", None, (memory_mib,), 1, process)
        return process

    async def render(self, asked: Rendering) -> list[str]:
        """The texts of the first conversations. Raises TemplateFault and _Gone."""
        loop = asyncio.get_running_loop()
        self._texts, self._ended = [], loop.create_future()
        if not self._is_gone:
            self._handle.send(Asked(1, pack_case(1, (asked,)), self._ended, company=1), loop.time())
            await self._watch(asked)
        if self._is_gone and not self._ended.done():
            how = await self._handle.how_it_ended()
            culprit = who_ended_it(self._handle.clues)
            raise _Gone(how if culprit is None else culprit.did)
        reply = self._ended.result()
        if "fault" in reply:
            raise TemplateFault(len(self._texts), reply["fault"], reply["happened"], reply["line"])
        return self._texts

    async def _watch(self, asked: Rendering) -> None:
        """Wait for the end of a request, and watch memory and time.

        Ticks count the time in which it does nothing, since this process may be suspended; so may the other, or get
        little of a busy machine.
        """
        handle, heard, ticks, began_cpu_s, last_cpu_s = self._handle, -1, 0, 0.0, 0.0
        patience_s = max(LOADING_S, 2 * asked.timeout_s)
        while not self._is_gone and not self._ended.done():
            await asyncio.wait([self._ended], timeout=_TICK_S)
            cpu_s = handle.cpu_s(handle.process.pid) or 0.0
            if used_mib(handle.process.pid) > self._memory_mib and not self._ended.done():
                raise self._stopped(too_much_memory(self._memory_mib))
            progress = len(self._texts) + handle.opened
            ticks = 0 if handle.opened and cpu_s > last_cpu_s else ticks + 1
            last_cpu_s = cpu_s
            if progress != heard:
                heard, ticks, began_cpu_s = progress, 0, cpu_s
            elif handle.opened and cpu_s - began_cpu_s > asked.timeout_s + _GRACE_S:
                told = f"data.chat_template_timeout_s = {asked.timeout_s:g} s of processor time"
                raise self._stopped(f"did not end within {told}")
            elif ticks * _TICK_S > patience_s:
                raise _Gone(f"did nothing for {patience_s:g} s")

    def _stopped(self, happened: str) -> TemplateFault:
        self.overdue = True
        return TemplateFault(len(self._texts), STOPPED, happened)

    async def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self._handle.kill()
        while not self._handle.ended():
            await asyncio.sleep(0.01)
        self._handle.release()

    # Messages of the process

    def heard(self, handle: Handle, message: dict[str, Any]) -> None:
        match message:
            case {"opened": True}:
                handle.opened = True
            case {"text": str(text)}:
                self._texts.append(text)
            case {"ended": True} if not self._ended.done():
                self._ended.set_result(message)

    def ended(self, handle: Handle) -> None:
        handle.retiring = self._is_gone = True

    def printed(self, part: bytes) -> None:
        """Templates cannot print; what transformers says is left out."""


SHARED = Renderer()
"""That of this process."""
