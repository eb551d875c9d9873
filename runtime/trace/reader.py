"""Reading a trace: streamed, its parts in order, only what is asked for parsed.

A line is found by a pattern over raw bytes, so that questions about one step or prompt parse few of a million
lines. The last line may be torn, as a killed process leaves it; it is passed over.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from runtime.files import refuse_not_plain
from runtime.trace.choose import HEADER_START, Chooser, Head, every, last_head
from runtime.trace.files import FORMAT, TraceUnreadable, check_kinds, find_trace, parts_of
from runtime.trace.kinds import Json
from runtime.trace.records import Record, decode

BLOCK_BYTES = 1 << 20
SNAPSHOT_MARK = b',"s":{"format":'
"""In every snapshot's line and in no other: quotes within texts are escaped."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that can be read."""

    path: Path
    parts: tuple[Path, ...]
    """Oldest first; the last is the one that is, or was, written to."""
    header: Json
    """Of the first part."""

    @property
    def started_unix_s(self) -> float:
        """When the trace was opened."""
        started: float = self.header["started_unix_s"]
        return started

    def lines(self, choose: Chooser = every) -> Iterator[bytes]:
        """Whole lines of records, in order: those that are chosen."""
        for part in self.parts:
            for block in blocks(part):
                yield from choose(block)

    def records(self, choose: Chooser = every) -> Iterator[Record]:
        """Records of these lines. Raises TraceUnreadable, naming the line."""
        yield from map(self.parse, self.lines(choose))

    def last_head(self) -> Head | None:
        """How the last record begins; None where there is none."""
        for part in reversed(self.parts):
            last = None
            for block in blocks(part):
                last = block
            head = None if last is None else last_head(last)
            if head is not None:
                return head
        return None

    def end_s(self) -> float:
        """The time of the last record, on the trace's monotonic clock; 0 where there is none."""
        head = self.last_head()
        return 0.0 if head is None else head.monotonic_s

    def parse(self, line: bytes) -> Record:
        """The record of a line. Raises TraceUnreadable."""
        return self.record_of(self.json_of(line))

    def json_of(self, line: bytes) -> Json:
        """A line as it is on disk. Raises TraceUnreadable."""
        given = parse_json(self.path, line)
        if type(given.get("q")) is not int or not isinstance(given.get("t"), int | float):
            raise TraceUnreadable(f"{self.path}: a line has no seq or time: {_shown(line)}")
        return given

    def record_of(self, given: Json) -> Record:
        """The record of a parsed line. Raises TraceUnreadable."""
        try:
            return decode(given, self.started_unix_s)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceUnreadable(f"{self.path}: record {given['q']} is none of this evenstep: {error}") from error

    @property
    def torn(self) -> bool:
        """The last line was cut off."""
        last = b""
        for block in blocks(self.parts[-1], whole=False):
            last = block
        return not last.endswith(b"\n")


def open_trace(path: Path) -> TraceFile:
    """A trace, by its file, or by the run's directory. Raises TraceUnreadable for what is none."""
    path = find_trace(path)
    parts = parts_of(path)
    header = read_header(parts[0])
    return TraceFile(path, parts, header)


def read_header(part: Path) -> Json:
    """The first line of a part. Raises TraceUnreadable."""
    try:
        with opened(part) as file:
            start = file.read(len(HEADER_START))
            line = start + file.readline() if start == HEADER_START else start + file.read(60)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(part, error) from error
    if not line:
        raise TraceUnreadable(
            f"{part} is empty: its process died before it wrote anything, or it is no trace; give a run's trace.jsonl"
        )
    if start != HEADER_START:
        raise TraceUnreadable(
            f"{part} is no trace of evenstep: it begins with {_shown(line)}; give a run's trace.jsonl"
        )
    if not line.endswith(b"\n"):
        raise TraceUnreadable(
            f"{part} has no whole line: its process died before its header was written; look at the run's output"
        )
    header = parse_json(part, line)
    if header["format"] != FORMAT:
        raise TraceUnreadable(
            f"{part} has format {header['format']!r}; this evenstep reads {FORMAT!r}: use the one that wrote it"
        )
    check_kinds(header)
    return header


def blocks(part: Path, *, whole: bool = True) -> Iterator[bytes]:
    """The bytes of a part in blocks of whole lines; a torn line at the end comes only where not `whole`."""
    try:
        with opened(part) as file:
            left = b""
            while block := file.read(BLOCK_BYTES):
                end = block.rfind(b"\n") + 1
                if not end:
                    left += block
                    continue
                yield left + block[:end]
                left = block[end:]
            if left and not whole:
                yield left
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(part, error) from error


def _unreadable(part: Path, error: Exception) -> TraceUnreadable:
    return TraceUnreadable(
        f"{part} can't be read: {error}; where it is damaged or away, name another part of the trace, which is read by "
        f"itself"
    )


def parse_json(path: Path, line: bytes) -> Json:
    """A line as an object. Broken UTF-8 is kept as lone surrogates. Raises TraceUnreadable."""
    try:
        given: Any = _loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceUnreadable(
            f"{path}: a line is not JSON ({error}); only the last may be torn, so the file was damaged: cut it off "
            f"before the line {_shown(line)}, or name another part of the trace"
        ) from error
    if not isinstance(given, dict):
        raise TraceUnreadable(f"{path}: a line is a {type(given).__name__}, not an object: {_shown(line)}")
    return given


def opened(part: Path) -> IO[bytes]:
    """A part, decompressed where it is. Raises OSError where it can't be opened, or is no plain file."""
    refuse_not_plain(part)
    if part.suffix == ".gz":
        return gzip.open(part, "rb")  # type: ignore[return-value]  # a GzipFile reads as a file does
    return part.open("rb")


def _loads(line: bytes) -> Any:
    """JSON by the faster parser of two, which takes neither broken UTF-8 nor lone surrogates. Raises ValueError."""
    try:
        return from_json(line, cache_strings="keys")
    except ValueError:
        return json.loads(line.decode("utf-8", "surrogateescape"))


def _shown(line: bytes) -> str:
    return repr(line[:80])
