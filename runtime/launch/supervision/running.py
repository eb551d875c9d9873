"""Processes that do not run, though they have not ended: stopped by a signal, a debugger, a cgroup, or a dead disk.

A healthy process of Ray wakes several times a second, also when it has nothing to do. So one in which no thread has run
for a while is frozen, while one that computes, sleeps or waits in users' code is not.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from runtime.launch.processes import PROC, Process

LOOK_S = 2.0
"""Between two looks."""


@dataclass(slots=True)
class _Seen:
    """What was seen of a process."""

    runs: int
    """How often its threads have been given a CPU."""
    idle_s: float = 0.0


class Looks:
    """For how long each of some processes has not run."""

    def __init__(self) -> None:
        self._seen: dict[Process, _Seen] = {}
        self._looked_s = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._looked_s >= LOOK_S

    def look(self, processes: Iterable[Process]) -> dict[Process, float]:
        """Look at processes; the seconds for which each has not run.

        Time in which this process did not look itself, since it was stopped too, does not count.
        """
        now_s = time.monotonic()
        elapsed_s, self._looked_s = min(now_s - self._looked_s, 2.0 * LOOK_S), now_s
        before, self._seen = self._seen, {}
        for process in processes:
            seen = _Seen(times_run(process.pid))
            if process in before and before[process].runs == seen.runs:
                seen.idle_s = before[process].idle_s + elapsed_s
            self._seen[process] = seen
        return {process: seen.idle_s for process, seen in self._seen.items()}


def times_run(pid: int) -> int:
    """How often the threads of a process have been given a CPU, those that have ended left out."""
    total = 0
    for task in (PROC / str(pid) / "task").glob("*/schedstat"):
        try:
            total += int(task.read_text(encoding="ascii").split()[2])
        except (OSError, ValueError, IndexError):
            continue
    return total if total else _switches(pid)


def _switches(pid: int) -> int:
    """The same from context switches, on a kernel that keeps no statistics of scheduling."""
    total = 0
    for task in (PROC / str(pid) / "task").glob("*/status"):
        try:
            lines = task.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        words = chain.from_iterable(line.split()[1:] for line in lines if "ctxt_switches" in line)
        total += sum(map(int, words))
    return total
