"""Coroutines of users' verifiers: all verdicts of a process share one event loop, in a thread of its own.

A coroutine that misses its deadline is cancelled, and its process goes on. One that keeps the loop from running others
is found by the task that is current.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Awaitable, Iterator
from contextvars import ContextVar
from time import monotonic
from types import CoroutineType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

from runtime.tasks.base import NoReward
from runtime.tasks.verdicts.clues import innermost, missed_deadline

_LOOK_S = 0.2
_MARGIN_S = 0.5
"""A coroutine ends this much before the pool would end its process."""
_asker: ContextVar[int] = ContextVar("the thread that waits for this coroutine")


class Coroutines:
    """Runs awaitables to their end for threads that wait. The loop starts with the first."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread
        self._askers: WeakKeyDictionary[asyncio.Future[Any], int] = WeakKeyDictionary()
        """By task, the thread that waits for it or for the task that created it."""
        self._ran = threading.Event()
        """The loop has run since the last `ping`."""
        self._ran.set()

    def result_of(self, awaitable: Awaitable[Any]) -> object:
        """What it returns. Raises what it raises, and NoReward if it misses its deadline."""
        _asker.set(threading.get_ident())
        ended = asyncio.run_coroutine_threadsafe(_caught(awaitable), self._started())
        until_s = monotonic() + self._timeout_s - min(_MARGIN_S, self._timeout_s / 10)
        while True:
            try:
                value, error = ended.result(max(_LOOK_S, until_s - monotonic()))
                break
            except TimeoutError:
                blocker = self.blocker()
            if blocker is None or blocker == threading.get_ident():
                ended.cancel()
                raise NoReward(
                    *missed_deadline(self._timeout_s, innermost(self._frames(awaitable, runs=blocker is not None)))
                )
        if error is not None:
            raise error
        return value

    def blocker(self) -> int | None:
        """The thread whose coroutine keeps the loop from running others; None if it runs, or if that is not known."""
        if self._ran.is_set() or self._loop is None:
            return None
        task = asyncio.current_task(self._loop)
        return None if task is None else self._askers.get(task)

    def ping(self) -> None:
        """Have the loop show that it runs, by the next call."""
        if self._loop is not None and self._ran.is_set():
            self._ran.clear()
            self._loop.call_soon_threadsafe(self._ran.set)

    def unfinished(self) -> int:
        """How many tasks have not ended, those that ignore their cancellation included."""
        return sum(not task.done() for task in list(self._askers))

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_task_factory(self._task)
                self._thread = threading.Thread(target=self._run, args=(self._loop,), daemon=True)
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except BaseException:  # a task of users' code may raise SystemExit, which leaves the loop
                continue

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        self._askers[task] = _asker.get(0)
        return task

    def _frames(self, awaitable: Awaitable[Any], *, runs: bool) -> list[tuple[str, int, str]]:
        """File, line and function of each frame of a coroutine, the innermost first."""
        if runs:
            stack = traceback.walk_stack(sys._current_frames()[self._thread.ident or 0])
        else:
            stack = reversed([(frame, frame.f_lineno) for frame in _suspended(awaitable)])
        return [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in stack]


async def _caught(awaitable: Awaitable[Any]) -> tuple[object, BaseException | None]:
    """The result or the error. SystemExit must not leave the task, since it would also leave the loop."""
    try:
        return await awaitable, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


def _suspended(awaitable: object) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, the outermost first."""
    while isinstance(awaitable, CoroutineType) and awaitable.cr_frame is not None:
        yield awaitable.cr_frame
        awaitable = awaitable.cr_await
