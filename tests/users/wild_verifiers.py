"""Verifiers for whole runs: nearly always sane, wild for some completions."""

import ctypes
import hashlib
import os
import signal
import sys
import threading
import time

import numpy as np

WILD = {
    0: lambda: os._exit(3),
    1: lambda: sys.exit("bye"),
    2: lambda: ctypes.string_at(0),
    3: lambda: os.kill(os.getpid(), signal.SIGKILL),
    4: lambda: time.sleep(1e6),
    5: lambda: 1 / 0,
    6: lambda: float("nan"),
    7: lambda: print("x" * 10_000_000),
    8: lambda: (_ for _ in ()).throw(KeyboardInterrupt),
}


def places(completion: str, answer: str) -> float:
    """The share of places that are right; for one in twenty wrong completions anything else."""
    digest = int.from_bytes(hashlib.blake2b(f"{completion}/{answer}".encode(), digest_size=8).digest())
    if completion != answer and digest % (20 * len(WILD)) in WILD:
        return WILD[digest % (20 * len(WILD))]()
    return sum(a == b for a, b in zip(completion, answer, strict=False)) / max(len(answer), len(completion))


def hangs_where_told(completion: str, answer: str) -> float:
    if answer == "hang":
        time.sleep(1e6)
    return places_alone(completion, answer)


def places_alone(completion: str, answer: str) -> float:
    return sum(a == b for a, b in zip(completion, answer, strict=False)) / max(len(answer), len(completion))


def leaves_a_thread(completion: str, answer: str) -> float:
    threading.Thread(target=time.sleep, args=(1e6,)).start()
    print("a thread is left")
    return places_alone(completion, answer)


FAULTS = {
    "sleeps": lambda: time.sleep(1e6),
    "exits": lambda: os._exit(3),
    "raises": lambda: 1 / 0,
    "prints": lambda: print("x" * 10_000_000) or 0.5,
    "allocates": lambda: float(np.ones(10 << 27)[0]),
    "nan": lambda: float("nan"),
}


def faulty(completion: str, row: dict[str, str]) -> float:
    """What the row says; otherwise the share of places that are right, less one."""
    if "fault" in row:
        return FAULTS[row["fault"]]()
    return places_alone(completion, row["answer"]) - 1.0
