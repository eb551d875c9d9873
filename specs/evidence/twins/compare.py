"""All configurations on all sides: the counts of each, and whether they agree."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from specs.evidence.small_run import SmallRun, runs_in
from specs.evidence.twins import spin, tlc
from specs.evidence.twins.counts import Counts, count_core
from specs.evidence.twins.parameters import Parameters, parameters


class Twin(NamedTuple):
    """A tool with the same rules written in its language."""

    name: str
    missing: Callable[[], str | None]
    """What to install if it cannot run; None if it can."""
    counts: Callable[[Parameters], Counts]
    """Raises ToolFailed."""


CONFIGURATIONS = runs_in(Path(__file__).with_name("configurations.yaml"))
"""The runs that are compared."""

TWINS = (Twin("SPIN", spin.missing, spin.count), Twin("TLC", tlc.missing, tlc.count))


class ComparedRun(NamedTuple):
    """The counts of one side for one configuration."""

    configuration: str
    side: str
    """evenstep, SPIN or TLC."""
    counts: Counts
    agrees: bool
    """With the core's counts; True for the core."""


def rows(configurations: Sequence[SmallRun], twins: Sequence[Twin]) -> Iterator[ComparedRun]:
    """Per configuration the core's row, and then one a twin. Raises ToolFailed."""
    for run in configurations:
        known = parameters(run)
        core = count_core(run)
        yield ComparedRun(run.name, "evenstep", core, agrees=True)
        for twin in twins:
            counts = twin.counts(known)
            yield ComparedRun(run.name, twin.name, counts, counts[:2] == core[:2])


def line(row: ComparedRun) -> str:
    """One row as the command prints it; a configuration's first has its name above it."""
    counts = row.counts
    name = f"{row.configuration}\n" if row.side == "evenstep" else ""
    verdict = "" if row.side == "evenstep" else "  agrees" if row.agrees else "  DIFFERS"
    return (
        f"{name}  {row.side:9}{counts.states:>10,} states{counts.transitions:>12,} transitions"
        f"{counts.seconds:>9.2f} s{counts.states / counts.seconds:>12,.0f} states/s{verdict}"
    )
