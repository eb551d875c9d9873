"""Verifiers that do what the completion's first word says, and hardly ever anything good."""

from __future__ import annotations

import _thread
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


def crowd() -> float:
    """Many threads that never end, none of them a daemon."""
    for _ in range(300):
        threading.Thread(target=time.sleep, args=(FOR_EVER_S,)).start()
    return 1.0


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
}


def _is_socket(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket")
    except OSError:
        return False


def deed(completion: str, answer: str) -> object:
    return DEEDS[completion.split()[0]]()


def torch_scalar(completion: str, answer: str) -> object:
    """A tensor of no dimension; only this one imports torch."""
    import torch

    return torch.tensor(0.5)


def modules(completion: str, answer: str) -> bool:
    """No heavy package was imported with the process."""
    return not {"torch", "ray", "pydantic", "transformers"} & set(sys.modules)
