"""A sampler that never answers hangs whoever asks it: that process ends itself, and leaves word of where it hung.

    hangs = Hangs(word, seconds)       # known to every process that asks
    with watched(hangs):               # in each of them, around what asks
        ...
    hang_in(word)                      # for whoever finds the process lost

The watch is `faulthandler`'s, a thread of C: it also fires where the sampler holds the interpreter's lock for ever.
`alive` sets it back, which an exploration says before everything that it runs.
"""

from __future__ import annotations

import faulthandler
import importlib
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

LONGEST_ANSWER_S = 60.0
"""Without a bound on time. An answer takes microseconds; an import may take its time."""
LOADING_S = 10.0
"""Beyond a bound on time, for a sampler that is imported and made."""
ASKING_S = 5.0
"""Beyond a bound on time, for one that is asked."""
_SET_BACK_EVERY_S = 0.25
"""Setting the watch back starts a thread, so it is not done before every answer."""


class Hangs(NamedTuple):
    """What every process that asks a sampler must know."""

    word: Path
    """The file for word of where it hung."""
    seconds: float | None
    """The bound on the time of one case."""


class _Watch:
    """The watch of this process, there while it is on."""

    def __init__(self, file: IO[bytes], seconds: float | None) -> None:
        self._file = file
        self._seconds = seconds
        self._set_s = 0.0
        self.set_back(seconds, LOADING_S)

    def set_back(self, left_s: float | None, more_s: float) -> None:
        """The process ends once what is left, and as much more, has passed."""
        now_s = time.monotonic()
        if now_s - self._set_s >= _SET_BACK_EVERY_S:
            self._set_s = now_s
            within_s = LONGEST_ANSWER_S if left_s is None else min(LONGEST_ANSWER_S, max(left_s, 0.0) + more_s)
            faulthandler.dump_traceback_later(within_s, exit=True, file=self._file)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Meanwhile."""
        faulthandler.cancel_dump_traceback_later()
        yield
        self._set_s = 0.0
        self.set_back(self._seconds, ASKING_S)


_watches: list[_Watch] = []
"""At most one: as `faulthandler` has."""


@contextmanager
def watched(hangs: Hangs | None) -> Iterator[None]:
    """What goes on meanwhile asks a sampler, and the process ends where it does not come back. None: none is asked."""
    if hangs is None or _watches:
        yield
        return
    with hangs.word.open("ab") as file:
        _watches.append(_Watch(file, hangs.seconds))
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            _watches.clear()


def alive(left_s: float | None) -> None:
    """The sampler has answered; `left_s` is left of the bound on time, None without one."""
    for watch in _watches:
        watch.set_back(left_s, ASKING_S)


@contextmanager
def nobody_asked() -> Iterator[None]:
    """What goes on meanwhile asks no sampler, and may take as long as it takes."""
    with ExitStack() as off:
        for watch in _watches:
            off.enter_context(watch.off())
        yield


class Hang(NamedTuple):
    """Where a process hung."""

    within_s: float
    """How long it had not come back."""
    method: str
    """Of the sampler, or <module>; empty where it was not the sampler that hung."""
    place: str
    """Its file and line, and what it was in there if that is another file."""


class _Frame(NamedTuple):
    file: str
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_ASKING = ("fsm/rules/sampler_calls.py", "fsm/rules/losses.py", "fsm/config/sampler_loading.py")
"""Files that ask a sampler, and nothing else that could hang."""


def hang_in(word: Path) -> Hang | None:
    """Where the process that left this word hung; None where there is no word."""
    text = word.read_text(encoding="utf-8", errors="replace")
    timeout = re.search(r"Timeout \((?:(\d+):(\d+):)?([\d.]+)\)", text)
    if timeout is None:
        return None
    hours, minutes, seconds = (float(part or 0) for part in timeout.groups())
    within_s = 3_600 * hours + 60 * minutes + seconds
    threads: list[list[_Frame]] = [[]]
    for line in text[timeout.end() :].splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            threads[-1].append(_Frame(*frame.groups()))
        else:
            threads.append([])
    asking = next((frames for frames in threads if any(_asks(frame) for frame in frames)), None)
    if asking is None:
        [innermost, *_] = [frames[0] for frames in reversed(threads) if frames] or [_Frame("an unknown file", "?", "?")]
        return Hang(within_s, "", f"{innermost}, in {innermost.name}")
    place = next(number for number, frame in enumerate(asking) if _asks(frame))
    own = [frame for frame in asking[:place] if not _imports(frame)]
    if not own:
        return Hang(within_s, "", str(asking[place]))
    called, innermost = own[-1], own[0]
    inside = "" if innermost.file == called.file else f" (in {innermost}, in {innermost.name})"
    return Hang(within_s, called.name, f"{_line_in(own, called.file)}{inside}")


def _asks(frame: _Frame) -> bool:
    return frame.file.endswith(_ASKING)


def _imports(frame: _Frame) -> bool:
    return frame.file.startswith("<frozen ") or frame.file == importlib.__file__


def _line_in(frames: list[_Frame], file: str) -> str:
    """The innermost line of the sampler's own file."""
    return str(next(frame for frame in frames if frame.file == file))
