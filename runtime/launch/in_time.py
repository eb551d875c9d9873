"""Code from outside that must answer soon: where it hangs, it is interrupted with the place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fsm.config.parse import RunConfig
from fsm.config.setup import Setup, set_up

LOADING_S = 120.0
"""For a sampler to be imported and made. An import of a large library may take its time."""


class NoAnswer(Exception):
    """Something hung. The message says for how long, and where it was."""


@contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Raises NoAnswer in what goes on meanwhile, once so many seconds have passed.

    A signal does it: so in the main thread only, and not in code that holds the interpreter's lock for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        place = "" if frame is None else f"; it was at {frame.f_code.co_filename}, line {frame.f_lineno}"
        raise NoAnswer(f"no answer within {seconds:g} s{place}")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def set_up_in_time(config: RunConfig, num_prompts: int) -> Setup:
    """`fsm.config.setup.set_up`, which also raises ConfigError for a custom sampler that hangs."""
    with answering_within(LOADING_S):
        return set_up(config, num_prompts)
