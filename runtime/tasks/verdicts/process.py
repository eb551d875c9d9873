"""The program of a verdict process. It imports the standard library alone, and ends when its parent does."""

import ctypes
import faulthandler
import io
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress
from time import sleep
from typing import IO, Any, NoReturn, cast

from runtime.tasks.base import Judge, NoReward, Rate, TaskError
from runtime.tasks.verdicts.clues import EXIT_CLUE, is_of_users
from runtime.tasks.verdicts.coroutines import Coroutines
from runtime.tasks.verdicts.memory import refuse_more_than
from runtime.tasks.verdicts.wire import pack_message, receive_case
from runtime.taxonomy import cause_of

HEARTBEAT_S = 0.5
DUMP_SIGNAL = signal.SIGUSR2
"""Makes the process write the stacks of all threads to its clues."""
_PR_SET_PDEATHSIG = 1
_LEFT_MAX = 256
"""Threads and coroutines that verdicts may leave behind."""
_TEXT_MAX = 500
_exit = os._exit
"""The original, which leaves no clue."""


def main(connection_fd: int, clues_fd: int, parent: int, threads: int, timeout_s: float, memory_mib: int) -> None:
    """Open the judge, which is sent first, then rate the cases that follow in `threads` threads."""
    prepare_process(clues_fd, parent)
    refuse_more_than(memory_mib, threads)
    _Server(socket.socket(fileno=connection_fd), threads, Coroutines(timeout_s)).serve()


def prepare_process(clues_fd: int, parent: int) -> None:
    """Have this process end with its parent, leave clues, and print anything."""
    _end_with(parent)
    clues = os.fdopen(clues_fd, "w")
    faulthandler.enable(file=clues, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, file=clues, all_threads=True)
    _let_exit_leave_a_clue(clues)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)


class Sender:
    """Sends messages to the parent, from any thread; ends the process if the parent is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def _send(self, message: dict[str, Any]) -> None:
        packed = pack_message(message)
        try:
            with self._sending:
                self._connection.sendall(packed)
        except OSError:
            _exit(1)

    def _beat(self) -> None:
        while True:
            sleep(HEARTBEAT_S)
            self._send({"alive": True})


class _Server(Sender):
    """Rates cases in threads, so that one that hangs does not block the others."""

    def __init__(self, connection: socket.socket, threads: int, coroutines: Coroutines) -> None:
        super().__init__(connection)
        self._threads = threads
        self._coroutines = coroutines
        self._signalling = _signalling_threads()
        self._cases: deque[tuple[int, tuple[Any, ...]]] = deque()
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        """At least one for each of these cases."""
        self._waiting = 0
        """Cases that were received and have not ended."""
        self._started = 0
        self._rate: Rate
        self._name: str
        """The judge's."""

    def serve(self) -> NoReturn:
        """Run in the main thread, which opens the judge. With one thread it also rates."""
        judge: Judge
        _, (judge,) = receive_case(self._connection)
        self._name = judge.name
        threading.Thread(target=self._beat, daemon=True).start()
        try:
            self._send({"opening": threading.get_ident()})
            self._rate = judge.open(self._coroutines.result_of)
            self._send({"opened": True})
        except BaseException as error:
            known = isinstance(error, TaskError)
            why = str(error) if known else f"{judge.name}: while it was loaded, it {raised(error)}; correct it there"
            self._send({"refused": why})
            _exit(1)
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            try:
                if self._threads == 1:
                    self._work()
                else:
                    threading.Event().wait()
            except BaseException:  # users' code may interrupt the main thread at any time
                self._wakes.put(None)

    def _receive(self) -> None:
        """Receive cases until the pool is gone, then end the process, even if other threads are busy."""
        try:
            while True:
                case = receive_case(self._connection)
                with self._sending:
                    self._waiting += 1
                    more = self._threads > 1 and self._started < min(self._waiting, self._threads)
                    self._started += more
                if more:
                    threading.Thread(target=self._work_on, daemon=True).start()
                self._cases.append(case)
                self._wakes.put(None)
        except (EOFError, OSError):
            _exit(0)
        finally:
            _exit(1)

    def _beat(self) -> None:
        while True:
            sleep(HEARTBEAT_S)
            self._send({"alive": True, "blocker": self._coroutines.blocker()})
            self._coroutines.ping()

    def _work_on(self) -> None:
        try:
            while True:
                self._work()
        finally:  # users' code may raise in this thread at any time, and take a wake-up along
            threading.Thread(target=self._work_on, daemon=True).start()
            self._wakes.put(None)

    def _work(self) -> None:
        self._wakes.get()
        try:
            number, case = self._cases.popleft()
        except IndexError:  # a wake-up too many
            return
        try:
            self._send({"began": number, "thread": threading.get_ident(), "tid": threading.get_native_id()})
            self._send(self._rated(number, case))
        except BaseException as error:  # raised in this thread from another, before or after the verifier ran
            fault = {"happened": raised(error), **blame(error, "have it raise in no thread that goes on without it")}
            self._send({"ended": number, "leaks": False} | fault)

    def _rated(self, number: int, case: tuple[Any, ...]) -> dict[str, Any]:
        """The message with its verdict."""
        reply: dict[str, Any] = {"ended": number}
        try:
            verdict = self._rate(*case)
            reply |= {"reward": verdict.reward, "correct": verdict.correct, "parts": dict(verdict.parts)}
        except NoReward as error:
            reply |= {"happened": str(error), "remedy": error.remedy, "infra": False, "of_code": False}
        except ImportError as error:  # of an import within the verifier
            happened = f"{self._name} {raised(error)}; {_IMPORT_IT}"
            reply |= {"happened": happened, "remedy": "", "infra": False, "of_code": True}
        except BaseException as error:
            reply |= {"happened": raised(error), **blame(error, "make it return 0.0 for what it cannot parse")}
        with self._sending:
            self._waiting -= 1
        here = threading.get_ident()
        if here in self._signalling:  # its error, if it told one, is not the verdict's
            reply = {"ended": number, "needs_main_thread": True}
        left = threading.active_count() + self._coroutines.unfinished()
        leaks = left > 2 * self._threads + _LEFT_MAX or self._coroutines.blocker() == here
        return reply | {"leaks": leaks}


def raised(error: BaseException) -> str:
    """The error, and the line of users' code that raised it."""
    try:
        text = f"{error!s:.{_TEXT_MAX}}"
    except BaseException as second:  # __str__ is users' code too
        text = f"(its text raised {type(second).__name__})"
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if is_of_users(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({error.filename}:{error.lineno})"
    else:
        where = f" ({users[-1].filename}:{users[-1].lineno} in {users[-1].name})" if users else ""
    return f"raised {type(error).__name__}: {text}{where}"


_IMPORT_IT = "install what it imports there, or correct that line"
_LESS_MEMORY = "let it use less memory, or raise cluster.reward_memory_mib (of an environment: data.task.memory_mib)"


def blame(error: BaseException, remedy: str) -> dict[str, Any]:
    """Whether an error of users' code is an infra failure, and the remedy: the given one where the code is to blame."""
    if isinstance(error, MemoryError):  # of the process' own limit, which another try meets again
        return {"infra": False, "remedy": _LESS_MEMORY, "of_code": False}
    if isinstance(error, ImportError):
        remedy = _IMPORT_IT
    try:
        infra = cause_of(error).infra
    except BaseException:  # attributes of users' errors are users' code
        infra = False
    waits = "the attempt is retried after a backoff; if this goes on, look at what it calls"
    return {"infra": infra, "remedy": waits if infra else remedy, "of_code": False}


def _signalling_threads() -> set[int]:
    """Fills with the threads that try to set a signal handler, other than the main thread, where alone that works."""
    found: set[int] = set()
    original = signal.signal

    def set_handler(number: int, handler: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            found.add(threading.get_ident())
        return original(number, handler)

    signal.signal = cast(Any, set_handler)
    return found


def _let_exit_leave_a_clue(clues: IO[str]) -> None:
    """Make os._exit write down which thread called it, and from where."""
    here = os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() == here:
            frame = sys._getframe(1)
            with suppress(OSError):  # users' code may have closed the file
                clues.write(f"{EXIT_CLUE} {threading.get_ident():#x} {frame.f_code.co_filename}:{frame.f_lineno}\n")
                clues.flush()
        _exit(status)

    os._exit = leave


def _end_with(parent: int) -> None:
    """Have the system kill this process when its parent ends, even if a verdict hangs here."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _exit(1)
