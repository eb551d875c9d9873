"""Where the controller's event loop is held, read from outside while it does not turn: in a custom sampler, mostly.

The controller keeps a file without a name, into which a signal has all stacks written, also while code of C holds the
interpreter. The process that started the run has it written, and reads it through /proc.
"""

import faulthandler
import os
import re
import signal
import tempfile
import time
from pathlib import Path

_SIGNAL = signal.SIGUSR2
_WRITTEN_S = 2.0
"""How long a process may take to write its stacks: one that is frozen does not."""
_CORE = re.compile(r'File ".*fsm/core\.py"')
_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_OF_CORE = re.compile(r".*/fsm/[^/]+(/[^/]+)?\.py")
"""A sampler calls the core too, as for a view's figures; its own line is what helps."""


def keep_stacks() -> int:
    """From now on the signal has this process write its stacks; the file descriptor to which it does."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  # it stays open as long as the process lives
    descriptor = os.dup(file.fileno())
    file.close()
    faulthandler.register(_SIGNAL, file=descriptor, all_threads=True)
    return descriptor


def held_at(pid: int, descriptor: int) -> str | None:
    """The line of the code that the core called, in which its thread is; None if it does not say, or is elsewhere."""
    path = Path(f"/proc/{pid}/fd/{descriptor}")
    try:
        before = path.stat().st_size
        os.kill(pid, _SIGNAL)
        deadline_s = time.monotonic() + _WRITTEN_S
        while path.stat().st_size == before and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(0.05)  # for the rest of it
        stacks = path.read_bytes()[before:].decode(errors="replace")
    except OSError:
        return None  # it has ended, or runs in another container
    for stack in re.split(r"^(?:Current thread|Thread) .*$", stacks, flags=re.MULTILINE):
        if (core := _CORE.search(stack)) is None:
            continue
        for file, line, function in _FRAME.findall(stack[: core.start()]):  # the innermost is first
            if not _OF_CORE.fullmatch(file):
                return f"{file}, line {line}, in {function}"
    return None
