"""Evidence of a verdict process, left when it ended or written on request: thread, file and line.

Clues are text in faulthandler's format: a line a thread (`Thread 0x00007f… (most recent call first):`) with its frames
under it, and `Current thread` for the one that crashed.
"""

import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EXIT_CLUE = "os._exit in thread"
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_CRASHED = re.compile(r"^Current thread (0x[0-9a-f]+)", re.MULTILINE)
_EXITED = re.compile(rf"^{re.escape(EXIT_CLUE)} (0x[0-9a-f]+) (.*)$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_FATAL = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)
_OWN = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True, slots=True)
class Culprit:
    """The thread that ended a process, and what it did, as in "called os._exit (my.py:3)"."""

    thread: int
    did: str


def is_of_users(filename: str) -> bool:
    """Whether a file belongs neither to Python, nor to an installed package, nor to this one."""
    return not filename.startswith(("<", _OWN, *_LIBRARIES))


def who_ended_it(clues: str) -> Culprit | None:
    """The thread that ended the process, if the clues name one."""
    if exited := _EXITED.search(clues):
        return Culprit(int(exited[1], 16), f"called os._exit ({exited[2]})")
    fatal, crashed = _FATAL.search(clues), _CRASHED.search(clues)
    if fatal is None or crashed is None:
        return None
    thread = int(crashed[1], 16)
    return Culprit(thread, f"crashed: {fatal[1]}{place_of(clues, thread)}")


def place_of(clues: str, thread: int) -> str:
    """` (file:line in function)` of a thread's innermost frame, preferably in users' code; "" if unknown."""
    lines = iter(clues.splitlines())
    frames: list[tuple[str, str, str]] = []
    for line in lines:
        if (header := _THREAD.match(line)) and int(header[1], 16) == thread:
            frames = []  # of the newest dump
            for below in lines:
                if not (frame := _FRAME.match(below)):
                    break
                frames.append((frame[1], frame[2], frame[3]))
    return innermost(frames)


def innermost(frames: Sequence[tuple[str, object, str]]) -> str:
    """` (file:line in function)` of the first of these frames, preferably in users' code; "" if there is none."""
    if not frames:
        return ""
    filename, number, function = next((frame for frame in frames if is_of_users(frame[0])), frames[0])
    return f" ({filename}:{number} in {function})"


def missed_deadline(timeout_s: float, place: str) -> tuple[str, str]:
    """What happened to a verdict that missed its deadline, and what to do about it."""
    return (
        f"gave no verdict within data.task.verdict_timeout_s = {timeout_s:g} s{place}",
        "give the verifier its own deadline, or raise data.task.verdict_timeout_s",
    )
