"""This machine: the memory and CPUs that are free before a run, and the memory that the run takes.

`this_machine` respects the limits of a container. `PeakMemory` samples a tree of processes. On Linux it adds up the
proportional set size (PSS): a page that n processes share (libraries, the object store) counts 1/n in each, so the sum
is what the processes really take; pages shared with processes outside the tree count in part. Elsewhere it adds up the
resident set size, from psutil, which counts shared pages once per process and so overstates.
"""

import math
import os
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

from runtime.launch.processes import PROC, process_tree

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = PROC / "meminfo"


class Machine(NamedTuple):
    """What is free."""

    cpus: int
    memory_bytes: int | None
    """None on a system without /proc."""


def this_machine(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> Machine:
    """CPUs and free memory: the least that the kernel, the affinity and the control group allow."""
    free = [bytes_ for bytes_ in (_available(meminfo), _left_in_cgroup(cgroup)) if bytes_ is not None]
    return Machine(_cpus(cgroup), min(free) if free else None)


def _cpus(cgroup: Path) -> int:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = (_text(cgroup / "cpu.max") or "max").partition(" ")
    if quota.isdigit() and period.isdigit():
        return max(1, min(cpus, math.ceil(int(quota) / int(period))))
    return cpus


def _available(meminfo: Path) -> int | None:
    """MemAvailable: what new processes can have without swapping."""
    for line in (_text(meminfo) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_in_cgroup(cgroup: Path) -> int | None:
    """What the control group may still take: version 2, else version 1. File pages that it can drop count as free."""
    for folder, limit_name, used_name, stat_key in (
        (cgroup, "memory.max", "memory.current", "inactive_file"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _text(folder / limit_name), _text(folder / used_name)
        if limit is None or used is None or not limit.isdigit():
            continue
        stats = dict(line.split(maxsplit=1) for line in (_text(folder / "memory.stat") or "").splitlines())
        return int(limit) - int(used) + int(stats.get(stat_key, 0))
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


class PeakMemory:
    """Samples a process tree every `interval_s` seconds, in a thread, while its context is entered.

    It may miss a process that lives shorter than the interval. A sample of a dozen processes takes about 10 ms.
    """

    def __init__(self, pid: int | None = None, *, interval_s: float = 1.0) -> None:
        """`pid` and its descendants; None: this process and its own."""
        self.peak_bytes = 0
        self.method = "not sampled"
        """PSS or RSS, and its source."""
        self._pid = os.getpid() if pid is None else pid
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak memory", daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        found, self.method = process_tree_bytes(self._pid)
        self.peak_bytes = max(self.peak_bytes, found)


def process_tree_bytes(pid: int) -> tuple[int, str]:
    """Memory of a process and all its descendants now, in bytes, and how it was measured."""
    if (PROC / "self" / "smaps_rollup").exists():
        return sum(_pss_bytes(each) for each in process_tree(pid)), "PSS (/proc)"
    if find_spec("psutil") is None:
        return 0, "nothing: there is no /proc/PID/smaps_rollup, and psutil is not installed"
    return _rss_bytes_of_tree(pid), "RSS (psutil)"


def _pss_bytes(pid: int) -> int:
    """0 for a process that has ended or may not be read."""
    try:
        with (PROC / str(pid) / "smaps_rollup").open(encoding="utf-8") as lines:
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
            continue  # it has ended, or may not be read
    return total
