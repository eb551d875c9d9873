"""SIGUSR1 asks a process for what it keeps in memory of its trace."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable


class SignalListener:
    """Answers SIGUSR1 on a thread of its own until it is closed."""

    def __init__(self, answer: Callable[[], object]) -> None:
        self._answer = answer
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True for a signal, False to end. Its `put` may be interrupted by itself, as a handler may be."""
        self._thread: threading.Thread | None = None
        if threading.current_thread() is threading.main_thread():  # signals belong to it
            self._thread = threading.Thread(target=self._run, name="SIGUSR1", daemon=True)
            self._thread.start()
            self._before = signal.signal(signal.SIGUSR1, lambda number, frame: self._asked.put(True))

    def close(self) -> None:
        """Go back to what the signal did before."""
        if self._thread is not None:
            signal.signal(signal.SIGUSR1, self._before)
            self._asked.put(False)
            self._thread = None

    def _run(self) -> None:
        while self._asked.get():
            self._answer()


def on_sigusr1(answer: Callable[[], object]) -> SignalListener:
    """Call something at every SIGUSR1 of this process, away from the main thread. Elsewhere than there, nothing."""
    return SignalListener(answer)
