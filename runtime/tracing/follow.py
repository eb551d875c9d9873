"""A live trace: lines as they are written, through rotation, until the run is over."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from runtime.tracing.choose import HEADER_START
from runtime.tracing.reader import TraceFile

CLOSED = b'"n":["TE"]}\n'
"""The end of the last line of a trace that was closed."""
POLL_S = 0.2
"""The file is looked at so often."""


def follow(trace: TraceFile) -> Iterator[bytes]:
    """All lines of a trace, those that are still to come included; ends with the TraceClosed of its process."""
    for part in trace.parts[:-1]:
        yield from TraceFile(part, (part,), trace.header).lines()
    file = trace.path.open("rb")
    left = b""
    rotated = False
    try:
        while True:
            line = file.readline()
            left += line
            if left.endswith(b"\n"):
                whole, left = left, b""
                if not whole.startswith(HEADER_START):
                    yield whole
                    if whole.endswith(CLOSED):
                        return
            elif not line and rotated:
                file.close()
                file = trace.path.open("rb")
                rotated = False
            elif not line:
                rotated = _was_rotated(file, trace.path)  # what was written before that is read first
                if not rotated:
                    time.sleep(POLL_S)
    finally:
        file.close()


def _was_rotated(file: IO[bytes], path: Path) -> bool:
    """The file that is open is not the one of that name any more; called when it is read to its end."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False  # between the renaming and the next part
    opened = os.fstat(file.fileno())
    return (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino)
