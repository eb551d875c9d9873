"""How `evenstep check` ends where it comes to no verdict: by a signal, or for a reason that is said."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from fsm.errors import ConfigError, SamplerError
from runtime.commands.written import NotWritten
from specs.pool import Interrupted
from specs.replay import Unconfirmed

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
    except (ConfigError, SamplerError, NotWritten) as reason:
        fail(str(reason))
    except Unconfirmed as twofold:
        fail(f"there is no verdict: {twofold}")
    except BrokenProcessPool:
        fail(
            "a process that went through cases is lost: it was killed, as where memory is short, or a sampler ended "
            "it. There is no verdict; set fewer --jobs, or --jobs 1 to see what it says"
        )


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command at once, with 130 and 143; a signal that is ignored stays so."""
    heard = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = [(each, signal.signal(each, _interrupt)) for each in heard]
    try:
        yield
    except Interrupted as stop:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        typer.echo(f"evenstep check: ended by {signal.Signals(stop.signum).name}; there is no verdict", err=True)
        raise typer.Exit(_BY_SIGNAL + stop.signum) from None
    finally:
        for each, handler in before:
            signal.signal(each, handler)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted(signum)
