"""A process that writes a checkpoint on a thread while it does other work, and is killed at a chosen point of it.

    python -m tests.runtime.checkpoints.killed DIRECTORY

Of the operations on the disk that a whole save takes, every STRIDE-th and the LAST ones are points. Every point has a
copy of DIRECTORY and a child process, which kills itself with SIGKILL there. Prints the copies.
"""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specs.scenarios.world import World
from tests.runtime.checkpoints.helpers import save_world, world_at

STRIDE, LAST = 6, 14


def count_operations(at: Callable[[int], None]) -> list[int]:
    """Have `at` called with its number before each operation that changes the disk; returns a list with the count."""
    count = [0]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*given: Any, **named: Any) -> Any:
            at(count[0])
            count[0] += 1
            return real(*given, **named)

        return operation

    for module, name in ((os, "fsync"), (os, "rename"), (os, "mkdir"), (os, "unlink"), (os, "rmdir")):
        setattr(module, name, counted(getattr(module, name)))
    for name in ("write_text", "write_bytes"):
        setattr(Path, name, counted(getattr(Path, name)))
    return count


def write_on_a_thread(directory: Path, world: World) -> None:
    """A checkpoint, of which the two newest stay."""
    writer = threading.Thread(target=save_world, args=(directory, world), kwargs={"keep": 2})
    writer.start()
    while writer.is_alive():
        sum(range(1000))  # the work that goes on meanwhile
    writer.join()


def die_at(point: int) -> Callable[[int], None]:
    def at(number: int) -> None:
        if number == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def main(directory: Path) -> None:
    world, killed = world_at(2), []
    counted = directory.with_name("counted")
    shutil.copytree(directory, counted)
    count = count_operations(lambda number: None)
    write_on_a_thread(counted, world)
    for point in sorted({*range(0, count[0], STRIDE), *range(count[0] - LAST, count[0])}):
        copy = directory.with_name(f"{directory.name}-{point}")
        shutil.copytree(directory, copy)
        child = os.fork()
        if child == 0:
            count_operations(die_at(point))
            write_on_a_thread(copy, world)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        killed.append(copy)
    print(*killed, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
