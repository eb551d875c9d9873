"""One verdict process, seen from the pool that started it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runtime.tasks.base import Judge, Verdict, VerdictFault
from runtime.tasks.verdicts.process import DUMP_SIGNAL
from runtime.tasks.verdicts.wire import pack_case, read_message

_DUMP_S = 0.3
"""How long a process may take to write its stacks."""
_HELD_S = 0.1
"""CPU time below which nothing is said of who used it."""
_END_S = 1.0
"""How long a process may take to end after its connection has."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The number of processes, and of threads in each, and the memory that each process may use."""

    processes: int
    threads: int
    memory_mib: int = 4096


@dataclass(eq=False, slots=True)
class Asked:
    """A case whose verdict the pool was asked for and has not answered."""

    number: int
    packed: bytes
    answer: asyncio.Future[Any]
    """A Verdict or a VerdictFault; of an environment's episode its reply."""
    company: int
    """Most verdicts, this one included, that its process may have at a time; fewer after an unexplained fault."""
    sent_s: float = 0.0
    """Time it was last sent to a process, on the loop's clock."""
    thread: int | None = None
    """The thread that rates it, once it has begun."""
    tid: int = 0
    """The operating system's id of that thread."""
    cpu_s: float = 0.0
    """CPU time of that thread when the heartbeat was first missed."""
    memory_mib: float = 0.0
    """Memory of its process when it was sent there."""
    unbegun: int = 0
    """How many fresh processes had a free thread for it, and did not begin it."""
    interrupted: int = 0
    """How often its process ended without evidence that this case was at fault."""

    def give(self, answer: Verdict | VerdictFault) -> None:
        """Answer it, unless nobody waits any more."""
        if not self.answer.done():
            self.answer.set_result(answer)


@dataclass(eq=False)
class Handle:
    """A process. It opens the judge first; then it is `opened`."""

    process: subprocess.Popen[bytes]
    threads: int
    began_s: float
    heard_s: float
    """Time of its last message, on the loop's clock."""
    writer: asyncio.StreamWriter
    clues_fd: int
    opened: bool = False
    opening_thread: int = 0
    refused: str | None = None
    """Why the judge cannot be opened."""
    deaf_since_s: float | None = None
    """Time its heartbeat was first missed."""
    blocker: int | None = None
    """The thread whose coroutine keeps the process' event loop from running others."""
    blocked_since_s: float = 0.0
    memory_mib: float = 0.0
    """Memory that it used when last looked at."""
    loaded_mib: float = 0.0
    """Memory that it used when the judge was open."""
    retiring: bool = False
    """It gets no more cases, and ends after its last."""
    killed: bool = False
    has_begun: bool = False
    """It has begun a case."""
    asked: dict[int, Asked] = field(default_factory=dict)
    """Its unanswered cases, by number."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def begun(self) -> list[Asked]:
        return [asked for asked in self.asked.values() if asked.thread is not None]

    def not_begun(self, until_s: float) -> list[Asked]:
        """Cases that were sent before `until_s` and have not begun. Each was sent when a thread was free."""
        return [asked for asked in self.asked.values() if asked.thread is None and asked.sent_s < until_s]

    @property
    def clues(self) -> str:
        return os.pread(self.clues_fd, 1 << 20, 0).decode("utf-8", "replace")

    def send(self, asked: Asked, now_s: float) -> None:
        asked.sent_s, asked.thread, asked.memory_mib = now_s, None, self.memory_mib
        self.asked[asked.number] = asked
        self.writer.write(asked.packed)

    async def dump(self) -> str:
        """Make it write the stacks of its threads; returns all its clues."""
        before = len(self.clues)
        with suppress(ProcessLookupError):
            self.process.send_signal(DUMP_SIGNAL)
        until_s = time.monotonic() + _DUMP_S
        while time.monotonic() < until_s:
            await asyncio.sleep(0.03)
            clues = self.clues
            if len(clues) > before and clues.endswith("\n"):
                break
        return self.clues

    def cpu_s(self, tid: int) -> float | None:
        """CPU time of one of its threads; None if the system does not tell."""
        try:
            fields = Path(f"/proc/{self.process.pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def note_cpu(self, running: Sequence[Asked]) -> None:
        """Remember the CPU time of these cases' threads so far."""
        for asked in running:
            asked.cpu_s = self.cpu_s(asked.tid) or 0.0

    def holders(self, running: Sequence[Asked]) -> list[Asked]:
        """The case whose thread used nearly all of the CPU time of these since `note_cpu`; empty if none did.

        Shares, not seconds: on a busy machine the thread that holds the interpreter may get little of a CPU.
        """
        used = [(self.cpu_s(asked.tid) or 0.0) - asked.cpu_s for asked in running]
        return [asked for asked, cpu_s in zip(running, used, strict=True) if cpu_s > max(_HELD_S, 0.8 * sum(used))]

    def kill(self) -> None:
        """Kill it with its session, once: afterwards another process may have its pid."""
        if self.killed:
            return
        self.killed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for task in self.tasks:
            task.cancel()
        self.writer.close()

    def ended(self) -> bool:
        """Whether it is gone; collects its exit code."""
        return self.process.poll() is not None

    async def how_it_ended(self) -> str:
        """Such as "ended its process with exit code 3". Waits a moment: the socket closes before the process ends."""
        until_s = time.monotonic() + _END_S
        while not self.ended() and time.monotonic() < until_s:
            await asyncio.sleep(0.01)
        code = self.process.poll()
        if code is None:
            return "closed the connection of its process"
        if code < 0:
            return f"had its process killed by {signal.Signals(-code).name}"
        return f"ended its process with exit code {code}"

    def release(self) -> None:
        os.close(self.clues_fd)


class Listener(Protocol):
    """What a handle calls in its pool."""

    def heard(self, handle: Handle, message: dict[str, Any]) -> None: ...

    def ended(self, handle: Handle) -> None: ...

    def printed(self, part: bytes) -> None: ...


async def start(judge: Judge, size: PoolSize, timeout_s: float, listener: Listener) -> Handle:
    """Start a process that opens the judge. Raises OSError if it cannot be started."""
    options = (size.threads, timeout_s, size.memory_mib)
    return await start_program("runtime.tasks.verdicts.process", judge, options, size.threads, listener)


async def start_program(
    program: str, code: object, options: tuple[float, ...], threads: int, listener: Listener
) -> Handle:
    """Start a process that runs `main` of the module `program`, and send it `code`. Raises OSError."""
    ours, theirs = socket.socketpair()
    output, their_output = os.pipe()
    with tempfile.TemporaryFile() as file:
        clues_fd = os.dup(file.fileno())
    arguments = (theirs.fileno(), clues_fd, os.getpid(), *options)
    command = f"import sys; sys.path[:] = {sys.path!r}; from {program} import main; main{arguments}"
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=their_output,
            stderr=their_output,
            pass_fds=(theirs.fileno(), clues_fd),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        os.close(output)
        os.close(clues_fd)
        raise
    finally:
        theirs.close()
        os.close(their_output)
    reader, writer = await asyncio.open_connection(sock=ours)
    now_s = asyncio.get_running_loop().time()
    handle = Handle(process, threads, now_s, now_s, writer, clues_fd)
    writer.write(pack_case(0, (code,)))
    handle.tasks = [
        asyncio.create_task(_listen(handle, reader, listener), name=f"verdicts of {process.pid}"),
        asyncio.create_task(_drain(output, listener), name=f"output of {process.pid}"),
    ]
    return handle


async def _listen(handle: Handle, reader: asyncio.StreamReader, listener: Listener) -> None:
    """Read messages until the process is gone or sends something else."""
    while True:
        try:
            message = await read_message(reader)
        except (OSError, EOFError, ValueError):
            break
        listener.heard(handle, message)
    listener.ended(handle)


async def _drain(output: int, listener: Listener) -> None:
    """Read the output of users' code, so that printing never blocks it."""
    with os.fdopen(output, "rb", buffering=0) as pipe:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while part := await reader.read(1 << 16):
                listener.printed(part)
        finally:
            transport.close()
