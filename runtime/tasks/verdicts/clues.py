"""What a process of verdicts has left when it ended, or leaves when it is asked: which thread, which file and line.

The clues are text, as faulthandler writes it: a line a thread (`Thread 0x00007f… (most recent call first):`), its
frames under it; `Current thread` for the one that crashed.
"""

from __future__ import annotations

import re
import sysconfig
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
    """A file is neither of Python, nor of an installed package, nor of this one."""
    return not filename.startswith(("<", _OWN, *_LIBRARIES))


def who_ended_it(clues: str) -> Culprit | None:
    """The thread at fault, if the process left word."""
    if exited := _EXITED.search(clues):
        return Culprit(int(exited[1], 16), f"called os._exit ({exited[2]})")
    fatal, crashed = _FATAL.search(clues), _CRASHED.search(clues)
    if fatal is None or crashed is None:
        return None
    thread = int(crashed[1], 16)
    return Culprit(thread, f"crashed: {fatal[1]}{in_brackets(where_thread_is(clues, thread))}")


def where_thread_is(clues: str, thread: int) -> str | None:
    """File, line and function of users' code in which a thread is, else of whichever code it is in."""
    lines = iter(clues.splitlines())
    frames: list[tuple[str, str, str]] = []
    for line in lines:
        if (header := _THREAD.match(line)) and int(header[1], 16) == thread:
            frames = []  # of the newest dump
            for below in lines:
                if not (frame := _FRAME.match(below)):
                    break
                frames.append((frame[1], frame[2], frame[3]))
    if not frames:
        return None
    filename, number, function = next((frame for frame in frames if is_of_users(frame[0])), frames[0])
    return f"{filename}:{number} in {function}"


def in_brackets(where: str | None) -> str:
    """As the end of a sentence, or nothing."""
    return "" if where is None else f" ({where})"
