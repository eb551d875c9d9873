"""Memory of a tree of processes, sampled while a run goes on.

On Linux what is added up is the proportional set size (PSS): a page that n processes share (libraries, the object
store) counts 1/n in each, so that the sum is what the processes really take; what they share with
processes outside the tree counts in part. Elsewhere it is the resident set size, from psutil, which counts shared
pages once per process and so overstates.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_PROC = Path("/proc")


class PeakMemory:
    """Samples a process tree every `interval_s` seconds, in a thread of its own. Also a context manager.

    What lives shorter than the interval may be missed. A sample of a dozen processes takes about 10 ms.
    """

    def __init__(self, pid: int | None = None, *, interval_s: float = 1.0) -> None:
        """`pid` and its descendants; None: this process and its own."""
        self.peak_bytes = 0
        self.method = "not sampled"
        """What was added up: PSS or RSS, and where it is from."""
        self._pid = os.getpid() if pid is None else pid
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak memory", daemon=True)

    def start(self) -> Self:
        """Sample now, and go on."""
        self.sample()
        self._thread.start()
        return self

    def stop(self) -> int:
        """Sample once more, end the thread, and return the peak. Stopping twice is stopping once."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join()
            self.sample()
        return self.peak_bytes

    def sample(self) -> int:
        """One sample, in bytes."""
        found, self.method = process_tree_bytes(self._pid)
        self.peak_bytes = max(self.peak_bytes, found)
        return found

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self.sample()


def process_tree_bytes(pid: int) -> tuple[int, str]:
    """Memory of a process and all its descendants now, in bytes, and how it was measured."""
    if (_PROC / "self" / "smaps_rollup").exists():
        return sum(_pss_bytes(each) for each in process_tree(pid)), "PSS (/proc)"
    if find_spec("psutil") is None:
        return 0, "nothing: there is no /proc/PID/smaps_rollup, and psutil is not installed"
    return _rss_bytes_of_tree(pid), "RSS (psutil)"


def process_tree(pid: int) -> list[int]:
    """A process and its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            parent = _parent(int(entry.name))
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    tree = [pid]
    for each in tree:
        tree.extend(children.get(each, ()))
    return tree


def _parent(pid: int) -> int | None:
    """The parent of a process; None where it has ended."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat[stat.rindex(")") + 2 :].split()[1])  # the name before the bracket may hold anything


def _pss_bytes(pid: int) -> int:
    """0 for a process that has ended or may not be looked at."""
    try:
        with (_PROC / str(pid) / "smaps_rollup").open(encoding="utf-8") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    except OSError:
        return 0


def _rss_bytes_of_tree(pid: int) -> int:
    psutil: Any = import_module("psutil")
    total = 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += int(process.memory_info().rss)
        except psutil.Error:
            continue  # it has ended, or may not be looked at
    return total
