"""What this machine has to give: free memory and CPUs, those of the container where there is one."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


class Machine(NamedTuple):
    """What is free."""

    cpus: int
    memory_bytes: int | None
    """None where it cannot be found out (no /proc)."""


def this_machine(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> Machine:
    """CPUs and free memory: the least of what the kernel, the affinity and the control group allow."""
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
