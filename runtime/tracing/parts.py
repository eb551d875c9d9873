"""The files of one trace: `trace.jsonl`, and what was rotated away from it, oldest first.

    trace.jsonl.1.gz  trace.jsonl.2.gz  …  trace.jsonl

Every part begins with the header (`part` is its number). A part is compressed aside and renamed, and only then
removed, so that whatever dies in between leaves it readable; where both forms are there, the plain one counts.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
from pathlib import Path

from runtime.tracing.header import TraceUnreadable

_COMPRESSION_LEVEL = 9
_TRACE_NAME = re.compile(r"(trace(?:-(\d+))?\.jsonl)(?:\.\d+(?:\.gz)?)?")
"""Of a trace, or of what was rotated away from it: a process may die before it opens the next part."""


def trace_path(directory: Path, incarnation: int) -> Path:
    """Each process of a run has a trace of its own: trace.jsonl, trace-1.jsonl after the first resume."""
    return directory / ("trace.jsonl" if incarnation == 0 else f"trace-{incarnation}.jsonl")


def _traces_of(directory: Path) -> list[tuple[int, str]]:
    """The incarnation and the name of every trace in a run's directory."""
    matches = (_TRACE_NAME.fullmatch(entry.name) for entry in directory.iterdir())
    return [(int(match[2] or 0), match[1]) for match in matches if match]


def next_incarnation(directory: Path, resumed: int) -> int:
    """That of a process which resumes a checkpoint of incarnation `resumed`: above those of all processes before it.

    Of two that resume the same checkpoint, the first may have left nothing but its trace.
    """
    return 1 + max([resumed, *(incarnation for incarnation, _ in _traces_of(directory))])


def find_trace(path: Path) -> Path:
    """`path` itself, or the newest trace of the run's directory that it is. Raises TraceUnreadable."""
    if not path.is_dir():
        return path
    found = _traces_of(path)
    if not found:
        raise TraceUnreadable(f"{path} has no trace: give the trace.jsonl of a run, or the directory that it is in")
    return path / max(found)[1]


def rotated(path: Path) -> dict[int, Path]:
    """What was rotated away from a trace, by number. Plain parts count before compressed ones."""
    found: dict[int, Path] = {}
    pattern = re.compile(re.escape(path.name) + r"\.(\d+)(\.gz)?")
    for entry in sorted(path.parent.iterdir(), reverse=True):  # a plain part comes after its compressed form
        if match := pattern.fullmatch(entry.name):
            found[int(match[1])] = entry
    return dict(sorted(found.items()))


def parts_of(path: Path) -> tuple[Path, ...]:
    """The files of a trace, oldest first; of a rotated part, that part alone. Raises TraceUnreadable."""
    before = tuple(rotated(path).values()) if path.parent.is_dir() else ()
    if path.exists():
        return (*before, path)
    if not before:
        raise TraceUnreadable(f"{path} does not exist: give the trace.jsonl of a run, or the directory that it is in")
    return before


def rotate(path: Path) -> Path:
    """Move a full part out of the way. Returns where it is now."""
    number = max(rotated(path), default=0) + 1
    part = path.with_name(f"{path.name}.{number}")
    path.rename(part)
    return part


def compress(part: Path) -> None:
    """Put a compressed part in the place of a plain one."""
    aside = part.with_name(f".{part.name}.tmp-{os.getpid()}")
    try:
        with part.open("rb") as plain, gzip.open(aside, "wb", compresslevel=_COMPRESSION_LEVEL) as packed:
            shutil.copyfileobj(plain, packed, 1 << 20)
        aside.replace(part.with_name(f"{part.name}.gz"))
        part.unlink()
    finally:
        aside.unlink(missing_ok=True)
