"""What each side counts of a run, and the error of a tool that could not."""

from __future__ import annotations

from typing import NamedTuple


class Counts(NamedTuple):
    """The size of a run's state space as one side found it."""

    states: int
    """Distinct states from the one after Begin on, ends included."""
    transitions: int
    """Answers of the world over all states, those that change nothing included."""
    seconds: float
    """Of the search."""


class ToolFailed(Exception):
    """SPIN, the C compiler or TLC did not do its part; what it printed is in the message."""
