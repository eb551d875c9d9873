"""Process trees, from /proc, and calls and processes that must end before a deadline."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_LOOK_S = 0.05


class Process(NamedTuple):
    """A process, told apart from a later one with the same number."""

    pid: int
    started: str
    """Clock ticks from the start of the machine to the start of the process."""


def process_tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    tree = [pid]
    for each in tree:
        tree.extend(children.get(each, ()))
    return tree


def descendants() -> list[Process]:
    """All processes below this one, now."""
    return [process for pid in process_tree(os.getpid())[1:] if (process := process_of(pid)) is not None]


def end_all(processes: Sequence[Process], grace_s: float) -> list[Process]:
    """Wait until processes have ended, and kill those that have not after `grace_s` seconds; returns the killed."""
    deadline_s = time.monotonic() + grace_s
    left = _alive(processes)
    while left and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        left = _alive(left)
    for process in left:
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(process.pid, signal.SIGKILL)
    return left


def within(seconds: float, call: Callable[[], object]) -> bool:
    """Make a call that may never return; says whether it returned before the deadline. Its errors are dropped."""

    def quietly() -> None:
        with suppress(Exception):
            call()

    thread = threading.Thread(target=quietly, name="bounded call", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def _alive(processes: Sequence[Process]) -> list[Process]:
    return [process for process in processes if process_of(process.pid) == process]


def process_of(pid: int) -> Process | None:
    """None for a process that has ended, a zombie included."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else Process(pid, fields[19])


def _stat(pid: int) -> list[str] | None:
    """State, parent and the following fields of /proc/PID/stat; None for a process that has ended."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat[stat.rindex(")") + 2 :].split()  # the name before the bracket may hold anything
