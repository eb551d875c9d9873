"""Carry out a plan's strikes on a run under way, each at its moment, and what passes is taken back after its time."""

import os
import random
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.checkpoints.checkpoint import CHECKPOINTS, list_checkpoints
from runtime.launch.supervision.roles import Role
from tests.chaos.cells import DRIVER
from tests.chaos.live import LINES, LiveRun, Phase, one_of, wait_for_call
from tests.chaos.plan import STEPS, Harm, Moment, Strike

USER_S = 10.0
"""After so long a user kills a driver that is stopped: no other process may judge it."""
TINY = 1
"""Bytes of the largest file that a full disk takes."""


class NotMet(Exception):
    """The moment did not come, or the process was gone: the run was over before."""


class Lasting:
    """What was done to a run and is to be taken back later, each once."""

    def __init__(self) -> None:
        self._timers: list[threading.Timer] = []

    def after(self, seconds: float, undo: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, undo)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def wait(self) -> None:
        """Until all is taken back."""
        for timer in self._timers:
            timer.join()


@contextmanager
def lasting() -> Iterator[Lasting]:
    """Nothing lasts beyond the block, which waits for it."""
    made = Lasting()
    try:
        yield made
    finally:
        made.wait()


def carry_out(run: LiveRun, strike: Strike, effects: Lasting, chance: random.Random) -> str:
    """Wait for a strike's moment and do it. Returns what was done. Raises NotMet."""
    try:
        if strike.moment.step < 0:
            run.wait_for(LINES[Phase.START][0])
        _wait_for(run, strike.moment)
        return _done(run, strike, effects, chance)
    except (LookupError, AssertionError, ProcessLookupError, ValueError):
        raise NotMet from None


def _wait_for(run: LiveRun, moment: Moment) -> None:
    if moment.step >= 0:
        run.wait_for(rf"^step ({'|'.join(map(str, range(moment.step, STEPS)))}) ")  # a resumed run may begin later
    if moment.phase is not None:
        wait_for_call(run, moment.phase)
    else:
        _pass(run, moment.delay_s)


def _pass(run: LiveRun, seconds: float) -> None:
    """Raises LookupError if the run ends meanwhile."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if run.process.poll() is not None:
            raise LookupError("the run is over")
        time.sleep(0.02)


def _done(run: LiveRun, strike: Strike, effects: Lasting, chance: random.Random) -> str:
    match strike.harm:
        case Harm.FULL:
            for role in (Role.TRAINER, Role.CONTROLLER):
                _limit_files(one_of(run, role), effects, strike.seconds)
            return ""
        case Harm.READ_ONLY:
            return _read_only(run.output / CHECKPOINTS, effects, strike.seconds)
        case Harm.TEAR:
            told = _tear(run, chance)
            os.kill(_pid(run, strike.process), signal.SIGKILL)
            return told
        case Harm.KILL:
            os.kill(_pid(run, strike.process), signal.SIGKILL)
            return ""
    pid = _pid(run, strike.process)
    os.kill(pid, signal.SIGSTOP)
    if strike.harm is Harm.PAUSE:
        effects.after(strike.seconds, lambda: _signal(pid, signal.SIGCONT))
    elif strike.process == DRIVER:
        effects.after(USER_S, lambda: _signal(pid, signal.SIGKILL))
        return f"killed by the user after {USER_S:.0f} s"
    return ""


def _pid(run: LiveRun, process: str) -> int:
    return one_of(run, None if process == DRIVER else Role(process))


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it was killed meanwhile
        os.kill(pid, number)


def _limit_files(pid: int, effects: Lasting, seconds: float) -> None:
    """The kernel refuses a process every longer file (EFBIG), as it does on a full disk (ENOSPC)."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (TINY, hard))

    def free() -> None:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    effects.after(seconds, free)


def _read_only(folder: Path, effects: Lasting, seconds: float) -> str:
    """For root, whom permissions do not stop, the folder becomes immutable; where it cannot, a file replaces it."""
    folder.mkdir(exist_ok=True)
    if os.getuid() != 0:
        folder.chmod(0o555)
        effects.after(seconds, lambda: folder.chmod(0o755))
        return ""
    with suppress(FileNotFoundError):
        if subprocess.run(["chattr", "+i", str(folder)], capture_output=True, check=False).returncode == 0:
            effects.after(seconds, lambda: subprocess.run(["chattr", "-i", str(folder)], check=True) and None)
            return ""
    away = folder.with_name("checkpoints-away")
    folder.rename(away)
    folder.touch()

    def back() -> None:
        folder.unlink()
        away.rename(folder)

    effects.after(seconds, back)
    return "a file in its place"


def _tear(run: LiveRun, chance: random.Random) -> str:
    """Damage a file of the newest checkpoint, as soon as there is one."""
    while not (found := list_checkpoints(run.output / CHECKPOINTS)):
        _pass(run, 0.1)
    file = chance.choice(sorted(path for path in found[0].rglob("*") if path.is_file()))
    content = bytearray(file.read_bytes())
    what = chance.choice(("cut", "flipped", "removed", "emptied"))
    if what == "removed":
        file.unlink()
    elif what == "flipped" and content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(content)
    else:
        file.write_bytes(content[: chance.randrange(max(1, len(content))) if what == "cut" else 0])
    step = re.sub(r".*-step-0*(?=\d)", "", found[0].name)
    return f"{file.name} of step {step} {what}"
