"""What the end of a run saves, within a bound.

A save is waited for as long as it writes, and given up when it stands still for longer than a healthy one may: while
the trainer finishes what it is at, and while what was written is hashed and flushed, no byte comes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from fsm.errors import EvenstepError

T = TypeVar("T")

STEP_SHARE, SAVING_SHARE, CLOSING_SHARE, HEARING_SHARE, TEARDOWN_SHARE = 0.25, 0.3, 0.08, 0.75, 0.2
"""Parts of `cluster.shutdown_timeout_s`: how long an optimizer step under way may still take; how long a save may stand
still; how long generation workers have to end their engines, and reward workers their verifiers; how long the process
that started the run waits for news of its end; and how long Ray has to shut down before it is killed. Those that
follow one another add up to less than the whole."""
HASHED_BYTES_PER_S = 100e6
"""What was written is hashed and flushed at this rate at least."""
_LOOKS = 8
"""How often a save is looked at within the time that it may stand still."""


class SaveStoodStill(EvenstepError):
    """Nothing was written for too long: whoever saves hangs."""


async def while_it_grows(work: Coroutine[Any, Any, T], folder: Path, still_s: float, tell: Callable[[], None]) -> T:
    """The result of a save into `folder`, which is waited for as long as that grows.

    `tell` is called as long as it is waited for. Raises what the save raises, and SaveStoodStill after `still_s`
    seconds without a byte, or what it takes to hash `folder` where that is longer.
    """
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    size, since_s = bytes_below(folder), loop.time()
    while not (await asyncio.wait([task], timeout=still_s / _LOOKS))[0]:
        now = bytes_below(folder)
        stood_s = loop.time() - since_s
        if now != size:
            size, since_s = now, loop.time()
        elif stood_s > max(still_s, size / HASHED_BYTES_PER_S):
            task.cancel()
            raise SaveStoodStill(
                f"nothing was written to {folder} for {stood_s:.0f} s: the trainer does not answer, or gathers its "
                "weights for longer than that; a longer cluster.shutdown_timeout_s waits longer"
            )
        tell()
    return task.result()


def bytes_below(folder: Path) -> int:
    """Bytes in all files below a folder; 0 where it does not exist."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue  # renamed meanwhile
    return total
