"""Write a trace. The control path queues records; a thread encodes them, folds them into the vitals and writes them.

A process that is killed loses the records of the last `flush_interval_s` at most, and may leave its last line torn. If
the disk refuses the file, the run continues: the file ends at its last whole line, and the ring in memory goes on.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, Self

from pydantic import Field

from fsm.config.strict import Strict
from fsm.core import AppliedEvent, Core
from fsm.snapshot import snapshot
from runtime.files import FileNotWritten, reason_of
from runtime.trace.files import compress, rotate
from runtime.trace.kinds import Json, name_of
from runtime.trace.notes import Note, TraceClosed
from runtime.trace.records import encode, line, note_body, snapshot_body, transition_body
from runtime.trace.vitals import Vitals


class TraceConfig(Strict):
    """How a run writes its trace."""

    enabled: bool = Field(
        default=True, description="Write trace.jsonl. If false, only the last records are kept, in memory."
    )
    flush_interval_s: float = Field(
        default=0.5, gt=0, le=1.0, description="Time between writes; a killed process loses what came since."
    )
    snapshot_every: int = Field(
        default=4096, ge=1, description="Records between two snapshots of the state; readers start from a snapshot."
    )
    max_bytes: int | None = Field(
        default=64 * 2**20, ge=4096, description="Size at which the file is rotated; null: never."
    )
    compress: bool = Field(default=True, description="Compress rotated files with gzip.")
    ring_records: int = Field(
        default=4096, ge=1, description="Last records kept in memory; the watchdog and SIGUSR1 write them to a file."
    )


SNAPSHOT_SHARE = 4
"""Least records between two snapshots, per group in hand: a snapshot lists every group."""


class TraceFailed(Exception):
    """The trace could not be written, or is closed. Raised by `observe`, `note`, `flush` and `close`."""


class _Snapshot(NamedTuple):
    """A queued snapshot."""

    core: Json
    closed_before: int


_Taken = tuple[int, float, float, AppliedEvent | Note | _Snapshot]
"""A queued record: number, monotonic time, wall time, content."""


class Trace:
    """Records transitions and notes of one owner in a file and in a ring in memory. Also a context manager.

    Consumes: calls of `observe` and `note` on the control path. Waits for: `flush_interval_s`. Unblocked by: the
    interval, `flush`, `dump`, `close`. Produces: lines of the file.
    """

    def __init__(
        self,
        path: Path,
        header: Json,
        config: TraceConfig | None = None,
        on_refused: Callable[[FileNotWritten], None] | None = None,
    ) -> None:
        """Open the trace and write its header. With `enabled: false` only `dump` writes a file.

        `header` comes from `make_header`. `on_refused` is called on the writing thread, once per file, when the disk
        refuses a file; the trace then continues without it. None: TraceFailed is raised instead.

        Raises OSError; FileExistsError if there is a file: a trace is never overwritten.
        """
        self.config = config or TraceConfig()
        self.path = path
        self.records = 0
        """Queued so far."""
        self._header = {**header, "started_unix_s": time.time()}
        self._taken: deque[_Taken] = deque()
        self._ring: deque[str] = deque(maxlen=self.config.ring_records)
        self._vitals = Vitals()
        self._opened_s, self._opened_unix_s = time.monotonic(), self._header["started_unix_s"]
        self._core: Core | None = None
        self._until_snapshot = self.config.snapshot_every
        saved = header["snapshot"]
        self._closed_steps = 0 if saved is None else len(saved["closed"])
        """Closed steps that snapshots have listed so far."""
        self.writing_cpu_s = 0.0
        """CPU time of encoding and writing."""
        self._on_refused = on_refused
        self._failure: Exception | None = None
        self._taking = True
        """False once the trace is closed or writing has failed."""
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._compressing: threading.Thread | None = None
        self._dumps = 0
        self._part = 0
        self._bytes = 0
        """Size of the current part."""
        self._file: IO[str] | None = self._open() if self.config.enabled else None
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def observe(self, transition: AppliedEvent, core: Core) -> None:
        """Queue a transition, and a snapshot of the core when one is due.

        Raises TraceFailed if an earlier record could not be written and there is no `on_refused`, or if the trace is
        closed. The core has made the transition by then and its effects are lost: the run must end and resume from its
        last checkpoint.
        """
        self._take(transition)
        self._core = core
        self._until_snapshot -= 1
        if self._until_snapshot <= 0:
            self.snapshot()

    def note(self, note: Note) -> None:
        """Queue a note. Raises TraceFailed, as `observe` does."""
        self._take(note)
        self._until_snapshot -= 1

    def _take(self, what: AppliedEvent | Note | _Snapshot) -> None:
        if not self._taking and type(what) is not _Snapshot:
            self._raise()
            kind = type(what.event if type(what) is AppliedEvent else what)
            raise TraceFailed(f"{self.path} is closed and takes no {name_of(kind)}")
        self._taken.append((self.records, time.monotonic(), time.time(), what))
        self.records += 1

    def snapshot(self) -> None:
        """Queue a snapshot of the core; nothing before the first transition."""
        core = self._core
        if core is None:
            return
        saved, before = snapshot(core), self._closed_steps
        saved["closed"] = saved["closed"][before:]
        self._closed_steps += len(saved["closed"])
        self._take(_Snapshot(saved, before))
        in_hand = core.state.sheet.leftover
        self._until_snapshot = max(self.config.snapshot_every, SNAPSHOT_SHARE * in_hand)

    def dump(self) -> Path:
        """Write the ring and the present state to a new file next to the trace, and return its path.

        Call it from the core's owner. Raises OSError.
        """
        lines = self.memory()
        while True:
            self._dumps += 1
            path = self.path.with_name(f"{self.path.stem}.ring-{self._dumps}{self.path.suffix}")
            try:
                with path.open("x", encoding="ascii") as file:
                    file.writelines(lines)
            except FileExistsError:
                continue
            return path

    def memory(self) -> list[str]:
        """The ring and the present state, as lines of a trace. Call it from the core's owner."""
        self.snapshot()
        self._drain()
        with self._writing:
            return [encode(self._header) + "\n", *self._ring]

    def flush(self) -> None:
        """Return once every queued record is in the file. Raises TraceFailed."""
        self._drain()
        self._raise()

    def close(self) -> None:
        """Write the queued records and the last state, then close. May be called twice. Raises TraceFailed."""
        if self._taking:
            self.snapshot()
            self.note(TraceClosed())
        self._taking = False
        self._over.set()
        self._thread.join()
        self._drain()
        if self._compressing is not None:
            self._compressing.join()
        self._on_file(lambda file: file.close())
        self._raise()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> IO[str]:
        file = self.path.open("x", encoding="ascii")
        header = encode({**self._header, "part": self._part}) + "\n"
        try:
            file.write(header)
            file.flush()
        except OSError:
            with suppress(OSError):  # closing flushes, and fails in the same way
                file.close()
            self.path.unlink()  # a part without a header cannot be read
            raise
        self._bytes = len(header)
        return file

    def _run(self) -> None:
        while not self._over.wait(self.config.flush_interval_s):
            self._drain()

    def _drain(self) -> None:
        """Write all queued records. An error is kept, and raised to the owner by its next call."""
        with self._writing:
            if not self._taken or self._failure is not None:
                return
            began_s = time.thread_time()
            try:
                while self._taken:
                    text = self._line(self._taken.popleft())
                    self._ring.append(text)
                    self._on_file(partial(self._write, text))
                self._on_file(lambda file: file.flush())
            except Exception as error:
                self._failure, self._taking = error, False
            finally:
                self.writing_cpu_s += time.thread_time() - began_s

    def _on_file(self, act: Callable[[IO[str]], object]) -> None:
        """Do something with the file, if there is one; the disk may refuse it."""
        try:
            if self._file is not None:
                act(self._file)
        except OSError as error:
            self._refused(error)

    def _write(self, text: str, file: IO[str]) -> None:
        file.write(text)
        self._bytes += len(text)
        if self.config.max_bytes is not None and self._bytes >= self.config.max_bytes:
            self._rotate(file)

    def _refused(self, error: OSError) -> None:
        """The disk refuses the file, which ends here. Without `on_refused` this is an error."""
        if self._file is not None:
            with suppress(OSError):  # `error` is what counts
                self._file.close()
        self._file = None
        if self._on_refused is None:
            self._failure, self._taking = self._failure or error, False
            return
        kept = "the run goes on, its trace ends there, and its last records are kept in memory (evenstep explain --run)"
        self._on_refused(FileNotWritten(self.path, reason_of(error), kept))

    def _line(self, taken: _Taken) -> str:
        seq, now_s, unix_s, what = taken
        monotonic_s = round(now_s - self._opened_s, 3)
        if type(what) is AppliedEvent:
            body = transition_body(what)
            self._vitals.transition(monotonic_s, what)
        elif type(what) is _Snapshot:
            body = snapshot_body(what.core, what.closed_before, self._vitals.as_json())
        else:
            note: Note = what  # type: ignore[assignment]  # neither of the others
            body = note_body(note)
            self._vitals.note(monotonic_s, note)
        return line(seq, monotonic_s, unix_s - self._opened_unix_s - monotonic_s, body)

    def _rotate(self, full: IO[str]) -> None:
        full.close()
        part = rotate(self.path)
        self._part += 1
        self._file = self._open()
        if self.config.compress:
            before, self._compressing = self._compressing, threading.Thread(target=self._compress, args=(part,))
            if before is not None:
                before.join()
            self._compressing.start()

    def _compress(self, part: Path) -> None:
        """Runs on another thread: compressing a large part takes longer than `flush_interval_s`."""
        try:
            compress(part)
        except Exception as error:
            if self._on_refused is None or not isinstance(error, OSError):
                self._failure, self._taking = error, False
                return
            packed = part.with_name(f"{part.name}.gz")
            self._on_refused(FileNotWritten(packed, reason_of(error), f"{part.name} stays uncompressed"))

    def _raise(self) -> None:
        if self._failure is not None:
            raise TraceFailed(
                f"{self.path} could not be written ({type(self._failure).__name__}: {self._failure}); free space "
                "on its disk, and resume from the last checkpoint"
            ) from self._failure
