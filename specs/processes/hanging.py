"""The user's code (a sampler, a property) may hang its process, or end it: either is reported and proves nothing.

A process that it hangs ends itself and leaves word of where:

    hangs = Hangs(words, seconds)      # known to every process that runs the user's code
    with watched(hangs):               # in each of them, around that code
        ...
    hang_in(words)                     # in the process that finds it lost

The watch is `faulthandler`'s, a thread of C: it also fires if the code holds the interpreter's lock. `alive` restarts
it; an exploration calls that before everything that it runs.
"""

import faulthandler
import importlib
import os
import re
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from fsm.errors import SamplerError
from specs.processes.pool import WorkInterrupted

LONGEST_ANSWER_S = 60.0
"""The deadline without a bound on time. An answer takes microseconds; an import may take seconds."""
LOADING_S = 10.0
"""Added to a bound on time while the user's code is imported."""
ASKING_S = 5.0
"""Added to a bound on time while it is asked."""
_RESTART_EVERY_S = 0.25
"""A restart of the watch starts a thread, so it is not done before every answer."""


class Hangs(NamedTuple):
    """What every process that runs the user's code must know."""

    words: Path
    """The folder for word of where it hung: a file a process, since several may hang at once."""
    seconds: float | None
    """The bound on the time of one case."""


class _Watch:
    """The watch of this process."""

    def __init__(self, file: IO[bytes], seconds: float | None) -> None:
        self._file = file
        self._seconds = seconds
        self._set_s = 0.0
        self.restart(seconds, LOADING_S)

    def restart(self, left_s: float | None, more_s: float) -> None:
        """End the process once `left_s + more_s` have passed."""
        now_s = time.monotonic()
        if now_s - self._set_s >= _RESTART_EVERY_S:
            self._set_s = now_s
            within_s = LONGEST_ANSWER_S if left_s is None else min(LONGEST_ANSWER_S, max(left_s, 0.0) + more_s)
            faulthandler.dump_traceback_later(within_s, exit=True, file=self._file)

    @contextmanager
    def off(self) -> Iterator[None]:
        """No deadline in here."""
        faulthandler.cancel_dump_traceback_later()
        yield
        self._set_s = 0.0
        self.restart(self._seconds, ASKING_S)


_watches: list[_Watch] = []
"""At most one, as `faulthandler` has."""


@contextmanager
def watched(hangs: Hangs | None) -> Iterator[None]:
    """End the process if the user's code, which runs in here, does not return in time. None: no deadline."""
    if hangs is None or _watches:
        yield
        return
    with (hangs.words / str(os.getpid())).open("ab") as file:
        _watches.append(_Watch(file, hangs.seconds))
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            _watches.clear()


def alive(left_s: float | None) -> None:
    """The user's code has answered; `left_s` is left of the bound on time, None without one."""
    for watch in _watches:
        watch.restart(left_s, ASKING_S)


@contextmanager
def nobody_asked() -> Iterator[None]:
    """No user's code runs in here, so there is no deadline."""
    with ExitStack() as off:
        for watch in _watches:
            off.enter_context(watch.off())
        yield


class Hang(NamedTuple):
    """Where a process hung."""

    within_s: float
    """How long it had not returned."""
    what: str
    """sampler or property; empty if it was not the user's code that hung."""
    method: str
    """The function that hung; <module> for an import."""
    place: str
    """Its file and line, and the innermost ones if they are in another file."""


class _Frame(NamedTuple):
    file: str
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_PROPERTY = "specs/check/user_properties.py"
_ASKING = ("fsm/rules/sampler_calls.py", "fsm/rules/losses.py", "fsm/config/sampler_loading.py", _PROPERTY)
"""The files that call the user's code, and nothing else that could hang."""


def hang_in(words: Path) -> Hang | None:
    """Where a process that left word in this folder hung, one in the user's code first; None if there is no word."""
    hangs = [hang for file in sorted(words.iterdir()) if (hang := _hang_of(file)) is not None]
    return min(hangs, key=lambda hang: not hang.what, default=None)


def _hang_of(word: Path) -> Hang | None:
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
        return Hang(within_s, "", "", f"{innermost}, in {innermost.name}")
    place = next(number for number, frame in enumerate(asking) if _asks(frame))
    loads_or_judges = not asking[place].file.endswith("sampler_calls.py")
    what = "property" if loads_or_judges and any(frame.file.endswith(_PROPERTY) for frame in asking) else "sampler"
    own = [frame for frame in asking[:place] if not _imports(frame)]
    if not own:
        return Hang(within_s, "", "", str(asking[place]))
    called, innermost = own[-1], own[0]
    inside = "" if innermost.file == called.file else f" (in {innermost}, in {innermost.name})"
    at = next(frame for frame in own if frame.file == called.file)  # the innermost one of the user's file
    return Hang(within_s, what, called.name, f"{at}{inside}")


def _asks(frame: _Frame) -> bool:
    return frame.file.endswith(_ASKING)


def _imports(frame: _Frame) -> bool:
    return frame.file.startswith("<frozen ") or frame.file == importlib.__file__


@contextmanager
def blaming(who: str | None) -> Iterator[None]:
    """Turn SystemExit and its like, raised in here, into a SamplerError that names `who`. None: no user's code runs.

    A KeyboardInterrupt is also blamed on that code in a process that ignores Ctrl-C or turns it into WorkInterrupted.
    """
    try:
        yield
    except (Exception, WorkInterrupted):
        raise
    except BaseException as cause:
        by_user = isinstance(cause, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if who is None or by_user:
            raise
        where = traceback.extract_tb(cause.__traceback__)[-1]
        raise SamplerError(
            f"{who}: {type(cause).__name__}({cause}) was raised in {where.filename}, line {where.lineno}, "
            f"in {where.name}; that would end the process and prove nothing. Correct it: it may raise errors, and it "
            f"may not end the process"
        ) from cause
