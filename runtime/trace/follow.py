"""A live trace: lines as they are written, through rotation, until the run is over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from runtime.trace.choose import HEADER_START
from runtime.trace.files import rotated
from runtime.trace.reader import TraceFile, opened

CLOSED = b'"n":["TE"]}\n'
"""The end of the last line of a trace that was closed."""
POLL_S = 0.2
"""The file is looked at so often."""


def follow(trace: TraceFile) -> Iterator[bytes]:
    """All lines of a trace, those that are still to come included; ends with the TraceClosed of its process."""
    number: int = trace.header["part"]
    while True:
        for line in _lines_of_part(trace.path, number):
            yield line
            if line.endswith(CLOSED):
                return
        number += 1


def _lines_of_part(path: Path, number: int) -> Iterator[bytes]:
    """Lines of a part, as they come, until there is nothing more and the part has been rotated away."""
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
                over = number + 1 in rotated(path)  # what was written before that is read first
                if not over:
                    time.sleep(POLL_S)


def _open_part(path: Path, number: int) -> IO[bytes]:
    """Open a part, wherever it is now: the live file, or rotated away, or compressed meanwhile."""
    while True:
        try:
            file = opened(rotated(path).get(number + 1, path))
            header = file.readline()
        except FileNotFoundError:
            continue  # renamed between the look and the opening
        if header.endswith(b"\n") and json.loads(header)["part"] == number:
            return file
        file.close()
        time.sleep(POLL_S / 10)
