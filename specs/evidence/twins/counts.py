"""What each side counts of a run, and the error of a tool that could not."""

from __future__ import annotations

import resource
from typing import NamedTuple


class Counts(NamedTuple):
    """The size of a run's state space as one side found it."""

    states: int
    """Distinct states from the one after Begin on, ends included."""
    transitions: int
    """Answers of the world over all states, those that change nothing included."""
    seconds: float
    """Processor time of the search, so that other work on the machine does not count."""


class ToolFailed(Exception):
    """SPIN, the C compiler or TLC did not do its part; what it printed is in the message."""


def children_s() -> float:
    """Processor time of all child processes that are over."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
