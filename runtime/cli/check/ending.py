"""How `evenstep check` ends without a verdict: by a signal, or for a reason that it reports."""

import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from fsm.errors import ConfigError, SamplerError
from runtime.cli.common import OutputRefused
from specs.check.user_properties import PropertyFault
from specs.counterexample import Unconfirmed
from specs.processes.hanging import Hangs, blaming, hang_in
from specs.processes.pool import ProcessLost, WorkInterrupted, apart, interrupt

TOOL_FAILED = 1
"""The exit code if there is no verdict; violated is 2, undetermined 3."""

_BY_SIGNAL = 128
"""Plus a signal's number it is the exit code, as in shells."""


def fail(message: str) -> NoReturn:
    """Print what is wrong and exit with that code."""
    typer.echo(f"evenstep check: {message}", err=True)
    raise typer.Exit(TOOL_FAILED)


@contextmanager
def saying_why_it_ends() -> Iterator[None]:
    """Turn refusals, faults of the user's code and lost processes into a message and exit code 1."""
    try:
        yield
    except (ConfigError, SamplerError, PropertyFault, OutputRefused) as reason:
        fail(str(reason))
    except Unconfirmed as twofold:
        fail(f"there is no verdict: {twofold}")
    except BrokenProcessPool:
        fail(
            "a process that explored cases is lost: it was killed, perhaps because memory is short, or a sampler or "
            "property ended it. There is no verdict; set fewer --jobs, or --jobs 1 to see what it prints"
        )


def asking_apart(names: Mapping[str, str], seconds: float | None, work: Callable[[Hangs], int]) -> int:
    """The exit code of work that runs the user's code, done on a forked process.

    That code runs there and nowhere else, so if it ends its process, that is reported and is no verdict. A process
    that it hangs ends itself; `seconds` is the bound on one case. `names`: see `specs.check.cases.outside_code`.
    """
    with tempfile.TemporaryDirectory() as folder:
        hangs = Hangs(Path(folder), seconds)
        return _asked_apart(names, " or ".join(names.values()), hangs, work)


def _asked_apart(names: Mapping[str, str], who: str, hangs: Hangs, work: Callable[[Hangs], int]) -> int:

    def blamed() -> int:
        with blaming(who):
            try:
                return work(hangs)
            except BrokenProcessPool:
                _fail_if_it_hangs(names, hangs)
                raise

    try:
        return apart(lambda: _reported(blamed))
    except ProcessLost as lost:
        _tidy_terminal()
        _fail_if_it_hangs(names, hangs)
        fail(
            f"{who} ended the process that it was asked in, {_how(lost.code)}: there is no verdict. "
            f"Correct it: it may raise errors, and it may not end the process"
        )
    except WorkInterrupted:
        _tidy_terminal()
        raise


def _fail_if_it_hangs(names: Mapping[str, str], hangs: Hangs) -> None:
    """Report a hang of which a process left word."""
    hang = hang_in(hangs.words)
    if hang is None:
        return
    if not hang.what:
        fail(f"there was no progress for {hang.within_s:.0f} s: {hang.place}. There is no verdict")
    asked = "while it was imported" if hang.method == "<module>" else f"{hang.method} did not return"
    fail(
        f"{names.get(hang.what, hang.what)} hangs: {asked}, for {hang.within_s:.0f} s, in {hang.place}. There is no "
        f"verdict. Correct it: it must answer at once, from its arguments alone"
    )


def _reported(work: Callable[[], int]) -> int:
    """The exit code of the work. Nothing else comes out: what it raises is printed."""
    try:
        try:
            with saying_why_it_ends():
                code = work()
        except typer.Exit as ended:
            code = ended.exit_code
        sys.stdout.flush()
    except BrokenPipeError:
        return TOOL_FAILED  # the reader of the output has closed it
    except Exception:
        traceback.print_exc()
        return TOOL_FAILED
    return code


def _how(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    memory = ", or was killed from outside, perhaps because memory is short" if code == -signal.SIGKILL else ""
    return f"by {signal.Signals(-code).name}{memory}"


def _tidy_terminal() -> None:
    """Remove the progress line that a lost process left, and show the cursor again."""
    terminal = Console(stderr=True)
    terminal.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), ControlType.SHOW_CURSOR))


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """End the command at once on Ctrl-C and SIGTERM, with 130 and 143; a signal that is ignored stays ignored."""
    heard = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = [(each, signal.signal(each, interrupt)) for each in heard]
    try:
        yield
    except WorkInterrupted as stop:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        typer.echo(f"evenstep check: ended by {signal.Signals(stop.signum).name}; there is no verdict", err=True)
        raise typer.Exit(_BY_SIGNAL + stop.signum) from None
    finally:
        for each, handler in before:
            signal.signal(each, handler)
