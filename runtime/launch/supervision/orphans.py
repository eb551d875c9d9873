"""What a process that was killed leaves: processes without a parent, the files of its Ray session, half-written ones.

A process that adopts orphans gets those of all processes below it as its children, so it can end them.
"""

import ctypes
import fcntl
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.launch.processes import Process, descendants, end_all, process_of

SESSIONS = Path("/tmp")
"""Short: Ray's sockets lie in a folder of it."""
_PREFIX, _OWNER = "es-", "owner"
_BEGAN = re.compile(r"session_[\d_-]+_(\d+)")
"""Ray's name of a session, with the pid of the process that began it."""
_SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""
_GONE_S = 10.0
"""How long a process may take to go after SIGKILL: one that writes memory or a file goes when it has."""


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """In the block, descendants of this process whose parents die become its children."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def bury_orphans(adopted: Iterable[int]) -> None:
    """Forget those of some processes that are children of this one, and have ended."""
    for pid in adopted:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def end_all_below(others: set[Process]) -> None:
    """Kill all processes below this one but `others`, stopped ones too, and those that they start meanwhile."""
    while doomed := [process for process in descendants() if process not in others]:
        for process in doomed:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        if end_all(doomed, _GONE_S):
            return  # not even SIGKILL ends it: it hangs in the kernel


@contextmanager
def session_directory() -> Iterator[Path]:
    """A new directory for Ray's files. It is removed at the end, or by `sweep` after this process was killed."""
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=SESSIONS))
    with (directory / f".{_OWNER}").open("wb") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        os.rename(owner.name, directory / _OWNER)  # locked from the moment that it has its name
        _own.append(directory)
        try:
            yield directory
        finally:
            _own.remove(directory)
            shutil.rmtree(directory, ignore_errors=True)


_own: list[Path] = []
"""The directories of this process."""


def remove_own() -> None:
    """Remove the session's directory of this process, which is about to end."""
    for directory in _own:
        shutil.rmtree(directory, ignore_errors=True)


def remove_half_written(output: Path) -> None:
    """Remove what processes that were killed have left unfinished in a run's directory."""
    from runtime.checkpoints.checkpoint import CHECKPOINTS, remove_unfinished  # the keeper has no need of them before
    from runtime.output.shared_output import TOKEN_FILE

    with suppress(OSError):
        (output / TOKEN_FILE).unlink(missing_ok=True)
        remove_unfinished(output / CHECKPOINTS)


def sweep() -> None:
    """Remove the directories of sessions whose process is gone: nobody locks them.

    One without its owner's file was removed by its process while Ray still wrote to it.
    """
    for directory in SESSIONS.glob(f"{_PREFIX}*"):
        if not (directory / _OWNER).exists():
            began = [_BEGAN.fullmatch(path.name) for path in directory.glob("session_*")]
            if any(began) and not any(named and process_of(int(named[1])) for named in began):
                shutil.rmtree(directory, ignore_errors=True)
            continue
        try:
            with (directory / _OWNER).open("rb") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            continue  # it is in use, or of another user
