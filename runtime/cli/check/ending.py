"""How `evenstep check` ends where it comes to no verdict: by a signal, or for a reason that is said."""

from __future__ import annotations

import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from fsm.errors import ConfigError, SamplerError
from runtime.cli.written import OutputRefused
from specs.counterexample import Unconfirmed
from specs.processes.blame import blaming
from specs.processes.hanging import Hangs, hang_in
from specs.processes.pool import ProcessLost, WorkInterrupted, apart, interrupt

TOOL_FAILED = 1
"""The exit code for what is wrong with the input; violated is 2, undetermined 3."""

_BY_SIGNAL = 128
"""Added to a signal's number it is the exit code, as shells have it."""


def fail(message: str) -> NoReturn:
    """Say what is wrong and exit with that code."""
    typer.echo(f"evenstep check: {message}", err=True)
    raise typer.Exit(TOOL_FAILED)


@contextmanager
def saying_why_it_ends() -> Iterator[None]:
    """What is refused, a sampler or an output that is to blame and a lost process are said, and exit with 1."""
    try:
        yield
    except (ConfigError, SamplerError, OutputRefused) as reason:
        fail(str(reason))
    except Unconfirmed as twofold:
        fail(f"there is no verdict: {twofold}")
    except BrokenProcessPool:
        fail(
            "a process that went through cases is lost: it was killed, as where memory is short, or a sampler ended "
            "it. There is no verdict; set fewer --jobs, or --jobs 1 to see what it says"
        )


def asking_apart(sampler: str, seconds: float | None, work: Callable[[Hangs], int]) -> int:
    """The exit code of work that asks a custom sampler, done on a process of its own.

    The sampler's code runs there and nowhere else, so that no way of ending the process it is asked in passes for a
    verdict. A process that it hangs ends itself, `seconds` being the bound on one case.
    """
    with tempfile.TemporaryDirectory() as folder:
        hangs = Hangs(Path(folder) / "word", seconds)
        hangs.word.touch()
        return _asked_apart(sampler, hangs, work)


def _asked_apart(sampler: str, hangs: Hangs, work: Callable[[Hangs], int]) -> int:
    def blamed() -> int:
        with blaming(sampler):
            try:
                return work(hangs)
            except BrokenProcessPool:
                _fail_where_it_hangs(sampler, hangs)
                raise

    try:
        return apart(lambda: _said(blamed))
    except ProcessLost as lost:
        _tidy_terminal()
        _fail_where_it_hangs(sampler, hangs)
        fail(
            f"sampler {sampler} ended the process that it was asked in, {_how(lost.code)}: there is no verdict. "
            f"Correct the sampler: it may raise errors, and it may not end the process"
        )
    except WorkInterrupted:
        _tidy_terminal()
        raise


def _fail_where_it_hangs(sampler: str, hangs: Hangs) -> None:
    """Where a process left word that it hung."""
    hang = hang_in(hangs.word)
    if hang is None:
        return
    if not hang.method:
        fail(f"it did not get on for {hang.within_s:.0f} s: {hang.place}. There is no verdict")
    asked = "while it was imported" if hang.method == "<module>" else f"{hang.method} did not return"
    fail(
        f"sampler {sampler} hangs: {asked}, for {hang.within_s:.0f} s, in {hang.place}. There is no verdict. "
        f"Correct the sampler: it answers at once, from its view alone"
    )


def _said(work: Callable[[], int]) -> int:
    """The exit code that work comes to, where nothing else may come out: what it raises is said or shown."""
    try:
        try:
            with saying_why_it_ends():
                code = work()
        except typer.Exit as ended:
            code = ended.exit_code
        sys.stdout.flush()
    except BrokenPipeError:
        return TOOL_FAILED  # whoever read the output has seen enough
    except Exception:
        traceback.print_exc()
        return TOOL_FAILED
    return code


def _how(code: int) -> str:
    """How a process ended, from its code."""
    if code >= 0:
        return f"with exit code {code}"
    memory = ", or was killed from outside, as where memory is short" if code == -signal.SIGKILL else ""
    return f"by {signal.Signals(-code).name}{memory}"


def _tidy_terminal() -> None:
    """A process that ended at once leaves a line that says how far it was, and no cursor."""
    terminal = Console(stderr=True)
    terminal.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), ControlType.SHOW_CURSOR))


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command at once, with 130 and 143; a signal that is ignored stays so."""
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
