"""Processes and calls that must be over within a time, whatever they wait for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from runtime.launch.memory import process_tree

_LOOK_S = 0.05


class Process(NamedTuple):
    """A process that is not mistaken for a later one of the same number."""

    pid: int
    started: str
    """Clock ticks between the start of the machine and that of the process."""


def descendants() -> list[Process]:
    """All processes below this one, now."""
    return [process for pid in process_tree(os.getpid())[1:] if (process := _process(pid)) is not None]


def _process(pid: int) -> Process | None:
    """None where it has ended; a zombie has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else Process(pid, fields[19])


def end_all(processes: Sequence[Process], grace_s: float) -> list[Process]:
    """Wait until processes have ended, and kill those that have not after `grace_s` seconds; returns the killed."""
    deadline_s = time.monotonic() + grace_s
    left = _alive(processes)
    while left and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        left = _alive(left)
    for process in left:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it has just ended by itself
    return left


def _alive(processes: Sequence[Process]) -> list[Process]:
    return [process for process in processes if _process(process.pid) == process]


def within(seconds: float, call: Callable[[], object]) -> bool:
    """Call something that may never return; whether it did within the time. What it raises is nobody's: it is over."""
    thread = threading.Thread(target=_quietly, args=(call,), name="bounded call", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        return


@contextmanager
def uninterrupted() -> Iterator[None]:
    """What takes a moment and must not be cut short: interrupts by signals are dropped meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_by_signals() -> Iterator[None]:
    """What schedulers and closing terminals send ends a run as Ctrl-C does. Signals belong to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}  # nohup has SIGHUP ignored
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
