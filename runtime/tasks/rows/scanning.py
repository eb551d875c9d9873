"""Digest large data in several processes, and follow their progress."""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import IO

from runtime.files import Json
from runtime.tasks.base import TaskError
from runtime.tasks.rows.item import RowColumns
from runtime.tasks.rows.scan_process import BLOCK_ROWS, Scan
from runtime.tasks.rows.source import RowSource

PROCESSES_MAX = 16
PROGRAM = "from runtime.tasks.rows.scan_process import main; main()"
"""What each process runs."""
RowsRead = Callable[[str, int, int], None]
"""Called while data is read that takes long: with its name, the rows read, and all rows; 0 if that is not known."""


def scan_in_processes(source: RowSource, columns: RowColumns, folder: Path, rows: int, tell: RowsRead) -> list[bytes]:
    """Fill the digests in `folder`; returns a hash of the answers of each block of rows, in order.

    Raises TaskError for a row that is wrong, or if a process ends early.
    """
    blocks = -(-rows // BLOCK_ROWS)
    count = min(len(os.sched_getaffinity(0)), PROCESSES_MAX, blocks)
    scans = [Scan(source, columns, folder, tuple(range(first, blocks, count))) for first in range(count)]
    answers: dict[int, bytes] = {}
    read = 0
    tell(source.name, 0, rows)
    with _processes(scans) as messages:
        while len(answers) < blocks:
            message = messages.get()
            if "wrong" in message:
                raise TaskError(message["wrong"])
            answers[message["block"]] = bytes.fromhex(message["answers"])
            read += message["rows"]
            tell(source.name, read, rows)
    return [answers[block] for block in range(blocks)]


@contextmanager
def _processes(scans: Sequence[Scan]) -> Iterator[SimpleQueue[Json]]:
    """Processes that scan, and their messages. They are killed at the end of the block."""
    messages: SimpleQueue[Json] = SimpleQueue()
    started: list[subprocess.Popen[bytes]] = []
    code = f"import sys; sys.path[:] = {sys.path!r}; {PROGRAM}"
    with tempfile.TemporaryFile() as errors:
        try:
            for scan in scans:
                process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
                started.append(process)
                assert process.stdin is not None
                with process.stdin as pipe:
                    pickle.dump(scan, pipe)
                threading.Thread(target=_listen, args=(process, scan, messages, errors), daemon=True).start()
            yield messages
        finally:
            for process in started:
                process.kill()
                process.wait()


def _listen(process: subprocess.Popen[bytes], scan: Scan, messages: SimpleQueue[Json], errors: IO[bytes]) -> None:
    """Put every message of a process into the queue; the last says what was wrong if it ended early."""
    assert process.stdout is not None
    heard = 0
    with process.stdout as pipe:
        for line in pipe:
            messages.put(json.loads(line))
            heard += 1
    if heard < len(scan.blocks):
        said = os.pread(errors.fileno(), 1 << 16, 0).decode("utf-8", "replace").strip()[-2000:]
        code = process.wait()
        lacked = (
            f"the disk of {scan.folder.parent.parent} may be full: free some space, or set XDG_CACHE_HOME to another "
            "folder"
            if code == -signal.SIGBUS  # a page of the index's file found no room
            else "it may have lacked memory"
        )
        messages.put(
            {
                "wrong": f"{scan.source.name}: a process that reads it ended early, with exit code {code}; "
                f"{lacked}. It printed: {said or 'nothing'}"
            }
        )
