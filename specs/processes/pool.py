"""Work on other processes, which never outlive the one that asked for it."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import FrameType
from typing import TypeVar

_UNWINDING_S = 5.0
"""How long a process may take to end those that it started, once it is told to end."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class WorkInterrupted(KeyboardInterrupt):
    """A signal asked the work to end. The signal's handler raises it, so it is told from what the work raises."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def interrupt(signum: int, frame: FrameType | None) -> None:
    """A handler of signals."""
    raise WorkInterrupted(signum)


def on_processes(
    work: Callable[[Item], Answer], items: Sequence[Item], jobs: int
) -> Generator[tuple[int, Answer], None, None]:
    """Answers as they come, with the number of the item; on this process if `jobs` is 1.

    The processes end at once if the work raises, if this generator is closed early, and if this process ends, however
    it ends. Raises what `work` raises, and BrokenProcessPool if a process is lost.
    """
    if jobs <= 1:
        for number, item in enumerate(items):
            yield number, work(item)
        return
    context = multiprocessing.get_context("spawn")
    lifeline, held_here = context.Pipe(duplex=False)
    with (
        lifeline,
        held_here,
        ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_work, initargs=(lifeline,)) as pool,
    ):
        try:
            # A spawned process inherits what is blocked: an early Ctrl-C is this process's alone.
            with _holding(signal.SIGINT):
                running = {pool.submit(work, item): number for number, item in enumerate(items)}
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            with _holding(signal.SIGINT, signal.SIGTERM):
                held_here.close()
                pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _holding(*signals: signal.Signals) -> Iterator[None]:
    """Handle signals that arrive in here afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ProcessLost(Exception):
    """A process ended before its work was done."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
        """Its exit code, or minus the number of the signal that ended it."""


def apart(work: Callable[[], int]) -> int:
    """What `work` returns, on a process that is forked off: this one survives, however that one ends.

    Only a number comes back: unpickling anything else could run the work's code here. The process ignores Ctrl-C. It
    ends with this one, or once it has answered, even if the work left threads. Raises ProcessLost.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_work_apart, args=(work, here, there))
    with here:
        with there, _holding(signal.SIGINT, signal.SIGTERM):
            process.start()
        try:
            answer: int = here.recv()
        except EOFError:
            process.join()
            raise ProcessLost(process.exitcode or 0) from None
        except BaseException:
            process.terminate()
            process.join(_UNWINDING_S)
            raise
        finally:
            process.kill()
            process.join()
    return answer


def _work_apart(work: Callable[[], int], here: Connection, there: Connection) -> None:
    """In the process: SIGTERM ends the processes that the work started, and then this one."""
    here.close()
    signal.signal(signal.SIGTERM, interrupt)
    _begin(there)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        there.send(work())
    except WorkInterrupted as stop:
        signal.signal(stop.signum, signal.SIG_DFL)
        signal.raise_signal(stop.signum)


def _begin(lifeline: Connection) -> None:
    """In each process: ignore Ctrl-C, which is for the process that asked for the work, and end with that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _begin_work(lifeline: Connection) -> None:
    """In each process of a pool: what the work prints goes to stderr, since stdout is for the results."""
    _begin(lifeline)
    sys.stdout = sys.stderr


def _end_with(lifeline: Connection) -> None:
    lifeline.poll(None)  # nothing is ever sent: it returns when the other end is closed
    os._exit(1)
