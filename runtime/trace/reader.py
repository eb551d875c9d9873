"""Read a trace: stream its parts in order, parse only the lines that are asked for, follow one that is being written.

Lines are chosen in raw bytes (`runtime.trace.choose`), so that a question about one step parses few of a million
lines. A killed process may leave its last line torn; readers skip it.
"""

import gzip
import json
import mmap
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from runtime.files import refuse_not_plain
from runtime.trace.choose import HEADER_START, Chooser, Head, every, head_of
from runtime.trace.files import FORMAT, TraceUnreadable, check_header, check_kinds, find_trace, parts_of, rotated
from runtime.trace.kinds import Json
from runtime.trace.records import Record, decode

BLOCK_BYTES = 1 << 20
SNAPSHOT_MARK = b',"s":{"format":'
"""In every snapshot's line and in no other: quotes inside texts are escaped."""
CLOSED = b'"n":["TE"]}\n'
"""How the last line of a closed trace ends."""
POLL_S = 0.2
"""How often `follow` looks at the file."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """An opened trace."""

    path: Path
    parts: tuple[Path, ...]
    """Oldest first; the last is the file that is, or was, written to."""
    header: Json
    """Of the first part."""

    @property
    def started_unix_s(self) -> float:
        started: float = self.header["started_unix_s"]
        return started

    def lines(self, choose: Chooser = every) -> Iterator[bytes]:
        """The chosen lines of records, whole and in order."""
        for part in self.parts:
            for block in blocks(part):
                yield from choose(block)

    def records(self, choose: Chooser = every) -> Iterator[Record]:
        """The records of these lines. Raises TraceUnreadable and shows the line."""
        yield from map(self.parse, self.lines(choose))

    def last_line(self) -> bytes:
        """The last whole line of a record; empty if there is none. Reads only the end of a plain file."""
        for part in reversed(self.parts):
            with content_of(part) as content:
                end = content.rfind(b"\n") + 1
                line = content[content.rfind(b"\n", 0, max(0, end - 1)) + 1 : end]
            if line and not line.startswith(HEADER_START):
                return line
        return b""

    def last_head(self) -> Head | None:
        """Number and time of the last record; None if there is none."""
        return head_of(self.last_line())

    @property
    def closed(self) -> bool:
        """The process that wrote the trace closed it: no record follows."""
        return self.last_line().endswith(CLOSED)

    @property
    def torn(self) -> bool:
        """The last line was cut off."""
        with content_of(self.parts[-1]) as content:
            return content[-1:] != b"\n"

    def parse(self, line: bytes) -> Record:
        """The record of a line. Raises TraceUnreadable."""
        given = self.json_of(line)
        try:
            return decode(given, self.started_unix_s)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceUnreadable(f"{self.path}: record {given['q']} cannot be read: {error}") from error

    def json_of(self, line: bytes) -> Json:
        """A line as it is on disk. Raises TraceUnreadable."""
        given = parse_json(self.path, line)
        if type(given.get("q")) is not int or not isinstance(given.get("t"), int | float):
            raise TraceUnreadable(f"{self.path}: a line has no seq or time: {_shown(line)}")
        return given


def open_trace(path: Path) -> TraceFile:
    """Open a trace by its file or by the run's directory. Raises TraceUnreadable."""
    path = find_trace(path)
    parts = parts_of(path)
    return TraceFile(path, parts, read_header(parts[0]))


def read_header(part: Path) -> Json:
    """The first line of a part. Raises TraceUnreadable."""
    with _reading(part) as file:
        start = file.read(len(HEADER_START))
        line = start + file.readline() if start == HEADER_START else start + file.read(60)
    if not line:
        raise TraceUnreadable(
            f"{part} is empty: its process died before it wrote anything, or this is no trace; name a run's trace.jsonl"
        )
    if start != HEADER_START:
        raise TraceUnreadable(
            f"{part} is no trace of evenstep: it begins with {_shown(line)}; name a run's trace.jsonl"
        )
    if not line.endswith(b"\n"):
        raise TraceUnreadable(
            f"{part} has no whole line: its process died before it had written the header; read the run's output"
        )
    header = parse_json(part, line)
    if header["format"] != FORMAT:
        raise TraceUnreadable(
            f"{part} has format {header['format']!r}; this evenstep reads {FORMAT!r}: use the version that wrote it"
        )
    check_header(header)
    check_kinds(header)
    return header


def blocks(part: Path) -> Iterator[bytes]:
    """The bytes of a part in blocks of whole lines, without a torn line at the end. Raises TraceUnreadable."""
    with _reading(part) as file:
        left = b""
        while block := file.read(BLOCK_BYTES):
            end = block.rfind(b"\n") + 1
            if end:
                yield left + block[:end]
                left = block[end:]
            else:
                left += block


@contextmanager
def content_of(part: Path) -> Iterator[bytes | mmap.mmap]:
    """All bytes of a part, to be searched from the end: a plain file is mapped, not read. Raises TraceUnreadable."""
    with _reading(part) as file:
        if part.suffix == ".gz":
            yield file.read()
        elif file.seek(0, 2) == 0:
            yield b""
        else:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield content


def opened(part: Path) -> IO[bytes]:
    """Open a part; a compressed one is decompressed. Raises OSError, also for a FIFO or a device."""
    refuse_not_plain(part)
    if part.suffix == ".gz":
        return gzip.open(part, "rb")  # type: ignore[return-value]  # a GzipFile reads as a file does
    return part.open("rb")


@contextmanager
def _reading(part: Path) -> Iterator[IO[bytes]]:
    try:
        with opened(part) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise TraceUnreadable(
            f"{part} cannot be read: {error}. If it is damaged or missing, name another part of the trace: each can be "
            "read alone"
        ) from error


def parse_json(path: Path, line: bytes) -> Json:
    """A line as an object. Broken UTF-8 becomes lone surrogates. Raises TraceUnreadable."""
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


def _loads(line: bytes) -> Any:
    """Parse with the fast parser; broken UTF-8 and lone surrogates need the other one. Raises ValueError."""
    try:
        return from_json(line, cache_strings="keys")
    except ValueError:
        return json.loads(line.decode("utf-8", "surrogateescape"))


def _shown(line: bytes) -> str:
    return repr(line[:80])


def follow(trace: TraceFile) -> Iterator[bytes]:
    """All lines of a trace, then those that its process still writes, through rotations, until it closes the trace."""
    number: int = trace.header["part"]
    while True:
        for line in _lines_of_part(trace.path, number):
            yield line
            if line.endswith(CLOSED):
                return
        number += 1


def _lines_of_part(path: Path, number: int) -> Iterator[bytes]:
    """Lines of a part as they are written, until the part is read to its end and has been rotated away."""
    over = False
    left = b""
    with _open_part(path, number) as file:
        while True:
            line = file.readline()
            left += line
            if left.endswith(b"\n"):
                if not left.startswith(HEADER_START):
                    yield left
                left = b""
            elif not line and over:
                return
            elif not line:
                over = number + 1 in rotated(path)  # read once more: lines may have been written before the rotation
                if not over:
                    time.sleep(POLL_S)


def _open_part(path: Path, number: int) -> IO[bytes]:
    """Open a part under the name it has now: the live file, a rotated part, or a compressed one."""
    while True:
        try:
            file = opened(rotated(path).get(number + 1, path))
            header = file.readline()
        except FileNotFoundError:
            continue  # renamed between the lookup and the opening
        if header.endswith(b"\n") and json.loads(header)["part"] == number:
            return file
        file.close()
        time.sleep(POLL_S / 10)
