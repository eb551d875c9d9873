"""Signals of the process that a user starts: SIGTERM and SIGHUP end a run, SIGUSR1 dumps its trace, SIGALRM is a
deadline.

Python delivers signals to the main thread only; in another thread, each of these context managers changes nothing.
"""

import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from fsm.config.blocks import RunConfig
from fsm.config.setup import Setup, set_up

LOADING_S = 120.0
"""Deadline for a sampler to be imported and constructed. The import of a large library may take its time."""


_ENDING = (signal.SIGTERM, signal.SIGHUP)


class NoAnswer(Exception):
    """Code of a user missed its deadline. The message gives the deadline and the line that was running."""


def interrupts_by_signals() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP, which schedulers and closing terminals send, as on Ctrl-C.

    Its argument is the signal's name; Python's own, for Ctrl-C, has none.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    heard = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    return _handled(heard, interrupt)  # nohup has SIGHUP ignored


@contextmanager
def counted_interrupts() -> Iterator[list[int]]:
    """Yields a list to which each SIGINT, SIGTERM and SIGHUP is added, instead of being raised."""
    came: list[int] = []
    heard = [number for number in (signal.SIGINT, *_ENDING) if signal.getsignal(number) != signal.SIG_IGN]
    with _handled(heard, lambda number, frame: came.append(number)):
        yield came


def uninterrupted() -> AbstractContextManager[None]:
    """Drop SIGINT, SIGTERM and SIGHUP during a short block that must not be cut."""
    return _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)


@contextmanager
def on_sigusr1(answer: Callable[[], object]) -> Iterator[None]:
    """Call `answer` on another thread at each SIGUSR1, until the block ends."""
    if not _in_main_thread():
        yield
        return
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()  # its put is reentrant, as a signal handler must be

    def listen() -> None:
        while asked.get():
            answer()

    threading.Thread(target=listen, name="SIGUSR1", daemon=True).start()
    try:
        with _handled((signal.SIGUSR1,), lambda number, frame: asked.put(True)):
            yield
    finally:
        asked.put(False)


@contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Raise NoAnswer inside the block once so many seconds have passed.

    It cannot stop code that never releases the interpreter's lock.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        place = "" if frame is None else f"; it was at {frame.f_code.co_filename}, line {frame.f_lineno}"
        raise NoAnswer(f"no answer within {seconds:g} s{place}")

    if not _in_main_thread():
        yield
        return
    with _handled((signal.SIGALRM,), interrupt):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


def set_up_in_time(config: RunConfig, num_prompts: int) -> Setup:
    """`fsm.config.setup.set_up` with a deadline: a custom sampler that hangs raises ConfigError."""
    with answering_within(LOADING_S):
        return set_up(config, num_prompts)


@contextmanager
def _handled(numbers: Iterable[int], handler: Any) -> Iterator[None]:
    if not _in_main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
