"""Run: running, completed or stopped."""

from enum import IntEnum
from typing import NamedTuple

from fsm.machines.table import Fairness, Rule, Table


class RunState(IntEnum):
    """Whether the run goes on."""

    RUNNING = 0
    COMPLETED = 1
    STOPPED = 2
    """By a limit of its configuration, a custom sampler, or the watchdog."""


class Run(NamedTuple):
    """The run's value."""

    status: RunState = RunState.RUNNING


class RunContext(NamedTuple):
    """Empty: the run's rules look at its status alone."""


def run_holds(_: Run, __: RunContext) -> bool:
    """Always: a run has only its status."""
    return True


_RUNNING, _COMPLETED, _STOPPED = RunState

RUN: Table[Run, RunContext] = Table(
    name="Run",
    states=RunState,
    initial=_RUNNING,
    rules=(
        Rule("complete", (_RUNNING,), _COMPLETED, ("X1", "X2", "X3")),
        Rule("stop", (_RUNNING,), _STOPPED, ("L4", "L6", "L7", "L8", "W2"), fairness=Fairness.NONE),
    ),
    refusals={
        "complete": "a run ends once",
        "stop": "a run ends once",
    },
    invariant=run_holds,
)
