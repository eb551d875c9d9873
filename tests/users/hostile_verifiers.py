"""Verifiers that do what the completion's first word says, and hardly ever anything good."""

import _thread
import asyncio
import ctypes
import os
import re
import signal
import sys
import threading
import time

import numpy as np

FOR_EVER_S = 1e6
PRINTED = 10_000_000


class Unsayable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Broken:
    def item(self) -> float:
        raise ValueError("only one element arrays can be converted")


def fork() -> float:
    """A copy of this process comes back from here too."""
    os.fork()
    return 1.0


def alarm() -> float:
    """As math_verify does: only the main thread of a process may."""
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.alarm(60)
    signal.alarm(0)
    return 1.0


def swallowed_alarm() -> float:
    """Tells nobody that its alarm failed."""
    try:
        return alarm()
    except ValueError:
        return 0.0


def crowd() -> float:
    """Many threads that never end, none of them a daemon."""
    for _ in range(300):
        threading.Thread(target=time.sleep, args=(FOR_EVER_S,)).start()
    return 1.0


def allocate(mib: int) -> float:
    """Used at once, as `numpy.ones` does."""
    return float(np.ones(mib << 17)[0])


def grow() -> float:
    """Little by little and without end, as a leak does; from a hundred places, so that no single one is large."""
    kept = []
    while True:
        kept.append(np.ones(8 << 17))
        time.sleep(0.005)


def raise_(error: BaseException) -> float:
    raise error


DEEDS = {
    "good": lambda: 1.0,
    "bad": lambda: 0.0,
    "waits": lambda: time.sleep(0.2) or 0.5,
    "sleeps": lambda: time.sleep(FOR_EVER_S),
    "exits": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit("bye"),
    "interrupts": lambda: raise_(KeyboardInterrupt()),
    "interrupts-main": lambda: _thread.interrupt_main() or 1.0,
    "segfaults": lambda: ctypes.string_at(0),
    "aborts": lambda: os.abort(),
    "is-killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "regex": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
    "closes-files": lambda: os.closerange(3, 100) or time.sleep(FOR_EVER_S),
    "writes-junk": lambda: [os.write(fd, b"\0\0\0\2hi") for fd in range(3, 100) if _is_socket(fd)] and time.sleep(60),
    "raises": lambda: raise_(ValueError("no number")),
    "raises-unsayable": lambda: raise_(Unsayable()),
    "prints": lambda: print("x" * PRINTED) or 1.0,
    "prints-surrogates": lambda: print("\udcff") or 1.0,
    "starts-a-thread": lambda: threading.Thread(target=time.sleep, args=(FOR_EVER_S,)).start() or 1.0,
    "starts-a-crowd": crowd,
    "forks": fork,
    "alarm": alarm,
    "alarm-swallowed": swallowed_alarm,
    "allocates": lambda: allocate(10_000),
    "takes-half": lambda: allocate(300) and 0.5,
    "grows": grow,
    "nan": lambda: float("nan"),
    "infinite": lambda: float("inf"),
    "none": lambda: None,
    "text": lambda: "1.0",
    "unshowable": Unshowable,
    "broken-item": Broken,
    "numpy.float32": lambda: np.float32(0.5),
    "numpy.bool": lambda: np.bool_(True),
    "numpy.int": lambda: np.int64(1),
    "numpy.array": lambda: np.array(0.5),
    "numpy.arrays": lambda: np.array([0.5, 0.5]),
    "numpy.nan": lambda: np.float64("nan"),
    "overflows": lambda: 10**400,
}


async def forever() -> float:
    await asyncio.sleep(FOR_EVER_S)
    return 1.0


async def cancels() -> float:
    raise asyncio.CancelledError


async def deaf_to_cancellation() -> float:
    while True:
        try:
            await asyncio.sleep(FOR_EVER_S)
        except asyncio.CancelledError:
            continue


async def children(word: str) -> object:
    """The deed, done by a task of its own."""
    return (await asyncio.gather(*(asynchronous(word, "") for _ in range(3))))[0]


async def asynchronous(completion: str, answer: str) -> object:
    """The deeds, in a coroutine. It shares its loop with all others of its process."""
    word, _, inner = completion.split()[0].partition(":")
    match word:
        case "waits":
            return await asyncio.sleep(0.2, 0.5)
        case "forever":
            return await forever()
        case "deaf":
            return await deaf_to_cancellation()
        case "cancels":
            return await cancels()
        case "children":
            return await children(inner)
    return DEEDS[word]()


def _is_socket(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket")
    except OSError:
        return False


def deed(completion: str, answer: str) -> object:
    return DEEDS[completion.split()[0]]()


LOOPS = set()


async def same_loop(completion: str, answer: str) -> bool:
    """A client of the module, bound to a loop, can be used by every verdict."""
    LOOPS.add(asyncio.get_running_loop())
    await asyncio.sleep(0.05)
    return len(LOOPS) == 1


def torch_scalar(completion: str, answer: str) -> object:
    """A tensor of no dimension; only this one imports torch."""
    import torch

    return torch.tensor(0.5)


def modules(completion: str, answer: str) -> bool:
    """No heavy package was imported with the process."""
    return not {"torch", "ray", "pydantic", "transformers"} & set(sys.modules)
