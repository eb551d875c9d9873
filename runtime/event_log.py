"""The event log: every event that the core applied, one JSON line each, so that a run can be replayed.

    line 1   the header: format, the configuration, the seeds, the versions of packages, the snapshot of a resumed run
    others   seq            0, 1, 2, … without a gap
             monotonic_s    seconds on the clock that never jumps, since the log was opened
             unix_s         wall time
             event          the event (`runtime.event_record`)
             effects        what the core answered
             digest         of all events and effects so far: logs of equal runs have equal digests, times apart

The control path only puts a transition aside; a thread encodes and writes. A process that is killed loses what was
put aside since the last write, `flush_interval_s` at most, and may leave its last line torn. `runtime.replay` feeds
a log to the core again. Readers pass over keys that they do not know, so that lines can say more later.
"""

from __future__ import annotations

import hashlib
import json
import platform
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from fsm.config import RunConfig
from fsm.core import Transition
from runtime.event_record import Json, effects_to_json, to_json

FORMAT = "evenstep events 1"
PACKAGES = ("evenstep", "transitions", "pydantic", "torch", "transformers", "ray", "numpy", "safetensors", "vllm")
"""Their versions are in the header where they are installed."""
_encode = json.JSONEncoder(separators=(",", ":")).encode


class EventLogFailed(Exception):
    """The log could not be written. Raised by the next observed event, by `flush` and by `close`."""


class EventLogUnreadable(Exception):
    """The file is no event log, or is damaged before its last line."""


def event_log_path(directory: Path, incarnation: int) -> Path:
    """Each process of a run has a log of its own: events.jsonl, events-1.jsonl after the first resume."""
    return directory / ("events.jsonl" if incarnation == 0 else f"events-{incarnation}.jsonl")


def make_header(
    config: RunConfig,
    *,
    num_prompts: int,
    seeds: Mapping[str, int],
    snapshot: Json | None = None,
    incarnation: int = 0,
) -> Json:
    """The first line of a log.

    Args:
        config: The resolved configuration; may be a subclass with blocks of its own.
        num_prompts: Prompts of an epoch, as given to `set_up`.
        seeds: By what they seed.
        snapshot: What the core was restored from, exactly as given to `restore`; None for a run that starts afresh.
        incarnation: That of the core (`core.book.incarnation`).
    """
    return {
        "format": FORMAT,
        "config": config.model_dump(mode="json"),
        "num_prompts": num_prompts,
        "seeds": dict(seeds),
        "incarnation": incarnation,
        "snapshot": snapshot,
        "packages": package_versions(),
        "started_unix_s": time.time(),
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, those that are installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


class EventLog:
    """An observer of the core that writes each transition down. Also a context manager.

    Consumes: transitions, by being called on the control path. Waits for: `flush_interval_s`. Unblocked by: the
    interval, `flush`, `close`. Produces: lines of the file.
    """

    def __init__(self, path: Path, header: Json, *, flush_interval_s: float = 0.5) -> None:
        """Open the log and write its header. Raises FileExistsError: no log is ever overwritten."""
        self.path = path
        self.events = 0
        """Lines written after the header."""
        self._taken: deque[tuple[float, float, Transition]] = deque()
        self._opened_s = time.monotonic()
        self._interval_s = flush_interval_s
        self._digest = Digest()
        self._failure: Exception | None = None
        self._taking = True
        """False once it is closed or writing has failed."""
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._file: IO[str] = path.open("x", encoding="utf-8")
        self._file.write(_encode(header) + "\n")
        self._file.flush()
        self._thread = threading.Thread(target=self._run, name="event log", daemon=True)
        self._thread.start()

    def __call__(self, transition: Transition) -> None:
        """Put one transition aside to be written.

        Raises EventLogFailed where an earlier one could not be, or the log is closed. The core has made the
        transition by then; its effects are lost, and the run must end and resume from its last checkpoint.
        """
        if not self._taking:
            self._raise()
            raise EventLogFailed(f"{self.path} is closed and takes no {type(transition.event).__name__}")
        self._taken.append((time.monotonic(), time.time(), transition))

    def flush(self) -> None:
        """Return once everything put aside is in the file. Raises EventLogFailed."""
        self._drain()
        self._raise()

    def close(self) -> None:
        """Write what is left and close the file. Closing twice is closing once. Raises EventLogFailed."""
        self._taking = False
        self._over.set()
        self._thread.join()
        self._drain()
        try:
            self._file.close()
        except OSError as error:
            self._failure = self._failure or error
        self._raise()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self._drain()

    def _drain(self) -> None:
        """Write all that is aside. What fails is kept for the owner, who is told at the next occasion."""
        with self._writing:
            if not self._taken or self._failure is not None:
                return
            try:
                while self._taken:
                    self._file.write(self._line(*self._taken.popleft()))
                    self.events += 1
                self._file.flush()
            except Exception as error:
                self._failure, self._taking = error, False

    def _line(self, monotonic_s: float, unix_s: float, transition: Transition) -> str:
        body = _encode({"event": to_json(transition.event), "effects": effects_to_json(transition.effects)})
        return (
            f'{{"seq":{self.events},"monotonic_s":{monotonic_s - self._opened_s:.6f},"unix_s":{unix_s:.6f},'
            f'{body[1:-1]},"digest":"{self._digest.add(body)}"}}\n'
        )

    def _raise(self) -> None:
        if self._failure is not None:
            raise EventLogFailed(
                f"{self.path} could not be written after {self.events} events ({type(self._failure).__name__}: "
                f"{self._failure}); free its disk, and resume from the last checkpoint"
            ) from self._failure


class Digest:
    """A digest of a run so far, over the encoded events and their effects."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, body: str) -> str:
        """The digest after one more event and its effects, as 16 hexadecimal digits."""
        self._hash.update(body.encode())
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True)
class RecordedEvents:
    """What a log holds."""

    header: Json
    events: list[Json]
    """The lines after the header."""
    torn: bool
    """The last line was cut off, as a killed process leaves it; it is not in `events`."""


def read_events(path: Path) -> RecordedEvents:
    """Read a log and check it line by line. Raises EventLogUnreadable, naming the line."""
    header: Json | None = None
    events: list[Json] = []
    digest = Digest()
    torn = False
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            torn = not line.endswith(b"\n")
            if torn:
                break
            record = _parsed(path, number, line)
            if header is None:
                header = _checked_header(path, record)
            else:
                _check_line(path, number, record, seq=len(events), digest=digest)
                events.append(record)
    if header is None:
        raise EventLogUnreadable(f"{path} has no whole line: the process died before its header was written")
    return RecordedEvents(header, events, torn)


def _parsed(path: Path, number: int, line: bytes) -> Json:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise EventLogUnreadable(f"{path}:{number}: not JSON ({error}); only the last line may be torn") from error
    if not isinstance(record, dict):
        raise EventLogUnreadable(f"{path}:{number}: a {type(record).__name__}, not an object")
    return record


def _checked_header(path: Path, record: Json) -> Json:
    if record.get("format") != FORMAT:
        raise EventLogUnreadable(f"{path} has format {record.get('format')!r}; this evenstep reads {FORMAT!r}")
    return record


def _check_line(path: Path, number: int, record: Json, *, seq: int, digest: Digest) -> None:
    missing = [key for key in ("seq", "event", "effects", "digest") if key not in record]
    if missing:
        raise EventLogUnreadable(f"{path}:{number}: {', '.join(missing)} is missing")
    if record["seq"] != seq:
        raise EventLogUnreadable(f"{path}:{number}: seq is {record['seq']}, expected {seq}: lines are lost or doubled")
    if record["digest"] != digest.add(_encode({"event": record["event"], "effects": record["effects"]})):
        raise EventLogUnreadable(
            f"{path}:{number}: the digest does not match: this line, or one before it, was changed"
        )
