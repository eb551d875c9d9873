"""The writer of a trace. The control path puts records aside; a thread encodes, folds and writes them.

A process that is killed loses what was put aside since the last write, `flush_interval_s` at most, and may leave its
last line torn. A disk that refuses the file costs the file, not the run: it ends at its last whole line, and the memory
goes on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Self

from fsm.core import AppliedEvent, Core
from fsm.snapshot import snapshot
from runtime.files import FileNotWritten, reason_of
from runtime.trace.config import TraceConfig
from runtime.trace.files import compress, rotate
from runtime.trace.kinds import Json
from runtime.trace.notes import Note, TraceClosed
from runtime.trace.records import encode, line, note_body, snapshot_body, transition_body
from runtime.trace.vitals import Vitals

SNAPSHOT_SHARE = 4
"""A snapshot has a line of its own per group in hand: there are at least so many times as many records between two."""


class TraceFailed(Exception):
    """A trace without `on_refused` could not be written. Raised by the next observed event, `flush` and `close`."""


class _Snapshot(NamedTuple):
    """A snapshot on its way to the thread."""

    core: Json
    closed_before: int


_Taken = tuple[int, float, float, AppliedEvent | Note | _Snapshot]
"""A record put aside: its number, the monotonic and the wall time, and what it is about."""


class Trace:
    """Takes transitions and notes, one owner; writes them, and keeps the last in memory. Also a context manager.

    Consumes: transitions and notes, by being called on the control path. Waits for: `flush_interval_s`. Unblocked
    by: the interval, `flush`, `dump`, `close`. Produces: lines of the file.
    """

    def __init__(
        self,
        path: Path,
        header: Json,
        config: TraceConfig | None = None,
        on_refused: Callable[[FileNotWritten], None] | None = None,
    ) -> None:
        """Open the trace and write its header; with `enabled: false` only `dump` writes, beside `path`.

        Args:
            path: Of the file.
            header: See `make_header`.
            config: None for the defaults.
            on_refused: Told, on the writing thread and once a file, what the disk refuses; the trace then goes on
                without that file. None: TraceFailed is raised instead.

        Raises OSError; FileExistsError, since no trace is ever overwritten.
        """
        self.config = config or TraceConfig()
        self.path = path
        self.records = 0
        """Put aside so far."""
        self._header = {**header, "started_unix_s": time.time()}
        self._taken: deque[_Taken] = deque()
        self._ring: deque[str] = deque(maxlen=self.config.ring_records)
        self._vitals = Vitals()
        self._opened_s, self._opened_unix_s = time.monotonic(), self._header["started_unix_s"]
        self._core: Core | None = None
        self._until_snapshot = self.config.snapshot_every
        saved = header["snapshot"]
        self._closed_steps = 0 if saved is None else len(saved["closed"])
        """In snapshots so far."""
        self.writing_cpu_s = 0.0
        """CPU time spent on encoding and writing, off the control path."""
        self._on_refused = on_refused
        self._failure: Exception | None = None
        self._taking = True
        """False once it is closed or writing has failed."""
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._compressing: threading.Thread | None = None
        self._dumps = 0
        self._part = 0
        self._bytes = 0
        """Of the current part."""
        self._file: IO[str] | None = self._open() if self.config.enabled else None
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def observe(self, transition: AppliedEvent, core: Core) -> None:
        """Put one transition aside; every few thousand records, a snapshot of the core too.

        Raises TraceFailed where an earlier record could not be written and there is no `on_refused`, or the trace is
        closed. The core has made the transition by then; its effects are lost, and the run must end and resume from
        its last checkpoint.
        """
        if not self._taking:
            self._refuse(type(transition.event).__name__)
        self._taken.append((self.records, time.monotonic(), time.time(), transition))
        self.records += 1
        self._core = core
        self._until_snapshot -= 1
        if self._until_snapshot <= 0:
            self.snapshot()

    def note(self, note: Note) -> None:
        """Put a note aside. Raises TraceFailed, as `observe` does."""
        if not self._taking:
            self._refuse(type(note).__name__)
        self._taken.append((self.records, time.monotonic(), time.time(), note))
        self.records += 1
        self._until_snapshot -= 1

    def snapshot(self) -> None:
        """Put a snapshot of the core aside, as it is now. Nothing where there was no transition yet."""
        core = self._core
        if core is None:
            return
        saved, before = snapshot(core), self._closed_steps
        saved["closed"] = saved["closed"][before:]
        self._closed_steps += len(saved["closed"])
        self._taken.append((self.records, time.monotonic(), time.time(), _Snapshot(saved, before)))
        self.records += 1
        in_hand = core.state.tally.leftover
        self._until_snapshot = max(self.config.snapshot_every, SNAPSHOT_SHARE * in_hand)

    def dump(self) -> Path:
        """Write what is kept in memory, and the state as of now, to a file beside the trace. Returns its path.

        To be called where the core is owned. Raises OSError.
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
        """What is kept in memory and the state as of now, as lines of a trace. To be called where the core is owned."""
        self.snapshot()
        self._drain()
        with self._writing:
            return [encode(self._header) + "\n", *self._ring]

    def flush(self) -> None:
        """Return once everything put aside is in the file. Raises TraceFailed."""
        self._drain()
        self._raise()

    def close(self) -> None:
        """Write what is left, the last state included, and close. Closing twice is closing once. Raises TraceFailed."""
        if self._taking:
            self.snapshot()
            self.note(TraceClosed())
        self._taking = False
        self._over.set()
        self._thread.join()
        self._drain()
        if self._compressing is not None:
            self._compressing.join()
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self._refused(error)
        self._raise()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> IO[str]:
        file = self.path.open("x", encoding="ascii")
        header = encode({**self._header, "part": self._part}) + "\n"
        try:
            file.write(header)
            file.flush()
        except OSError:
            with suppress(OSError):  # the same once more
                file.close()
            self.path.unlink()  # a part without a header says nothing
            raise
        self._bytes = len(header)
        return file

    def _run(self) -> None:
        while not self._over.wait(self.config.flush_interval_s):
            self._drain()

    def _drain(self) -> None:
        """Write all that is aside. What fails is kept for the owner, who is told at the next occasion."""
        with self._writing:
            if not self._taken or self._failure is not None:
                return
            began_s = time.thread_time()
            try:
                while self._taken:
                    self._write(self._taken.popleft())
                self._flush()
            except Exception as error:
                self._failure, self._taking = error, False
            finally:
                self.writing_cpu_s += time.thread_time() - began_s

    def _write(self, taken: _Taken) -> None:
        text = self._line(taken)
        self._ring.append(text)
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._bytes += len(text)
            if self.config.max_bytes is not None and self._bytes >= self.config.max_bytes:
                self._rotate(self._file)
        except OSError as error:
            self._refused(error)

    def _flush(self) -> None:
        if self._file is None:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._refused(error)

    def _refused(self, error: OSError) -> None:
        """The disk refuses the file, which ends here. Without `on_refused` it is a failure."""
        if self._file is not None:
            with suppress(OSError):  # it is the same one, or says no more
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
            note: Note = what  # type: ignore[assignment]  # the third of three
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
        """Beside the writing: packing a large part takes longer than a killed process may lose."""
        try:
            compress(part)
        except OSError as error:
            if self._on_refused is None:
                self._failure, self._taking = error, False
            else:
                packed = part.with_name(f"{part.name}.gz")
                self._on_refused(FileNotWritten(packed, reason_of(error), f"{part.name} stays as it is, and is read"))
        except Exception as error:
            self._failure, self._taking = error, False

    def _refuse(self, what: str) -> None:
        self._raise()
        raise TraceFailed(f"{self.path} is closed and takes no {what}")

    def _raise(self) -> None:
        if self._failure is not None:
            raise TraceFailed(
                f"{self.path} could not be written ({type(self._failure).__name__}: {self._failure}); free its disk, "
                "and resume from the last checkpoint"
            ) from self._failure
