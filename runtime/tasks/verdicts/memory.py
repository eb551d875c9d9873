"""How much memory a verdict process may use, and uses. Linux tells and limits; elsewhere nothing is limited."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

MIB = 1 << 20
_RESERVED_MIB = 2048
"""Interpreters and libraries ask for this much that they never touch."""
_STACK_MIB = 8
"""Reserved for each thread's stack, and hardly used."""
_THREADS = 256
"""Threads that verdicts may start themselves."""


def refuse_more_than(memory_mib: int, threads: int) -> None:
    """Make an allocation far beyond `memory_mib` fail, with a MemoryError in the verdict that asks for it.

    The limit is above `memory_mib`, since it counts what is asked for and not what is used. Processes that this one
    starts have the same limit each.
    """
    if sys.platform == "linux":
        most = (memory_mib + _RESERVED_MIB + (threads + _THREADS) * _STACK_MIB) * MIB
        with suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def used_mib(pid: int) -> float:
    """Memory that a process has to itself, without files that it maps; 0 if the system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0.0
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / MIB
