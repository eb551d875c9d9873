"""What each side counts of a run: the core here, its twins in `spin` and `tlc`."""

import resource
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from specs.checker.explore import HOLDS, explore
from specs.evidence.small_run import SmallRun
from specs.properties.catalog import properties_of
from specs.properties.kinds import Properties


class Counts(NamedTuple):
    """The size of a run's state space as one side found it."""

    states: int
    """Distinct states from the one after Begin on, ends included."""
    transitions: int
    """Answers of the world over all states, those that change nothing included."""
    seconds: float
    """Processor time of the search, so that other work on the machine does not count."""


class ToolFailed(Exception):
    """A side did not search the whole run: the checker, SPIN, the C compiler or TLC. The message has its output."""


def count_core(run: SmallRun) -> Counts:
    """All states and transitions of the core, with the properties of both on, as the twins have theirs.

    Raises ConfigError, and ToolFailed if a property is violated.
    """
    laws = run.laws()
    looked_for = properties_of(laws)
    begun_s = time.process_time()
    found = explore(laws, run.world, Properties(looked_for.always, looked_for.edges))
    seconds = time.process_time() - begun_s
    if found.verdict != HOLDS:
        told = f"{found.why} {found.broken or ''} after {', '.join(answer.name for answer in found.counterexample)}"
        raise ToolFailed(f"the checker: {run.name}: {found.verdict}: {told}")
    return Counts(found.states, found.transitions, seconds)


def run_tool(tool: str, command: list[str], where: Path) -> tuple[str, float]:
    """What a command printed, and its seconds of processor time. Raises ToolFailed."""
    begun_s = _children_s()
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    if done.returncode != 0:
        raise ToolFailed(f"{tool}: {' '.join(command)} exited {done.returncode} and printed:\n{printed}")
    return printed, _children_s() - begun_s


def _children_s() -> float:
    """Processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
