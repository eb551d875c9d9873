"""The configuration matrix: every built-in sampler × shrink and replace × dynamic sampling on and off × window 0 to 2
× N 2 to 4 × streaming minimum 1 to N × crash on and off.

What setup refuses is listed as refused, and not explored. The larger a cell's N and window, the less data it has and
the less goes wrong in it (`_EXTENTS`): its states grow with the number of ways in which the groups of all open steps
can be spread over the places, so one cell with everything at once would outlast all others together.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import product
from typing import NamedTuple

from fsm.config.setup import set_up
from fsm.errors import ConfigError
from specs.check.cases import Case, ScopeName, laws_in
from specs.check.scaling import Scaled
from specs.checker.explore import explore
from specs.engine.search import Bounds
from specs.evidence.small_run import SmallRun
from specs.model import CrashFrom, WorldOptions
from specs.processes.pool import on_processes
from specs.properties.catalog import properties_of

SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")
REFUSED_AT_SETUP = "refused"


class Cell(NamedTuple):
    """One configuration of the matrix."""

    name: str
    case: Case
    refused: str | None
    """Why setup refuses it; None if it runs."""
    cost: int
    """Grows roughly with the time that it takes."""


_FULL = WorldOptions()
_AT_ONCE = WorldOptions(backs_off=False)
_CLAIMS = WorldOptions(fails=False)
_TRAINS = WorldOptions(fails=False, claims_fail=False)

_EXTENTS: Mapping[ScopeName, Mapping[tuple[int, int], tuple[int, WorldOptions]]] = {
    ScopeName.QUICK: {
        **{(size, 0): (2, _AT_ONCE) for size in (2, 3, 4)},
        **{(size, 1): (1, _AT_ONCE) for size in (2, 3)},
        (2, 2): (1, _CLAIMS), (4, 1): (1, _TRAINS),
        (3, 2): (0, _TRAINS), (4, 2): (0, _TRAINS),
    },
    ScopeName.DEFAULT: {
        (2, 0): (3, _FULL), (3, 0): (3, _FULL), (4, 0): (3, _FULL),
        (2, 1): (3, _FULL), (3, 1): (2, _AT_ONCE), (4, 1): (1, _AT_ONCE),
        (2, 2): (2, _AT_ONCE), (3, 2): (1, _CLAIMS), (4, 2): (1, _TRAINS),
    },
    ScopeName.DEEP: {
        (2, 0): (5, _FULL), (3, 0): (4, _FULL), (4, 0): (4, _FULL),
        (2, 1): (5, _FULL), (3, 1): (3, _FULL), (4, 1): (2, _FULL),
        (2, 2): (3, _FULL), (3, 2): (2, _FULL), (4, 2): (1, _FULL),
    },
}  # fmt: skip
"""By N and window the steps of data beyond the window, and what goes wrong."""


def matrix(scope: ScopeName) -> list[Cell]:
    """All cells, the longest first; refused ones last."""
    cells = [
        _cell(scope, sampler, pool, filters, window, size, minimum, crash)
        for sampler, pool, filters, window, size, crash in product(
            SAMPLERS, ("shrink", "replace"), (False, True), (0, 1, 2), (2, 3, 4), (False, True)
        )
        for minimum in range(1, size + 1)
    ]
    return sorted(cells, key=lambda cell: (cell.refused is not None, -cell.cost))


def _cell(
    scope: ScopeName, sampler: str, pool: str, filters: bool, window: int, size: int, minimum: int, crash: bool
) -> Cell:
    """One configuration. Drops are within the budget wherever the sampler may have one, and floors allow losses."""
    steps, world = _EXTENTS[scope][size, window]
    name = (
        f"{sampler:<11} {pool:<7} {'filters' if filters else 'keeps  '} window {window} N {size} minimum {minimum} "
        f"{'crash   ' if crash else 'no crash'}"
    )
    dropped = 0 if sampler == "weight_fifo" else 1
    config = SmallRun(
        name, sampler, size, window, 0,
        grpo={"use_dynamic_sampling": filters},
        async_rl={"min_groups_for_streaming_train": minimum},
        rollout_failure={"on_dropped_prompt": pool, "max_consecutive_dropped_prompts": dropped},
        is_checked=False,
    ).config()  # fmt: skip
    refused: str | None = None
    num_prompts = (window + steps) * size
    try:
        limits = set_up(config, num_prompts).limits
        if not limits.skips_trailing:
            num_prompts += 1
    except ConfigError as refusal:
        refused = str(refusal)
    world = world._replace(crash=CrashFrom.OWN_SNAPSHOT if crash else CrashFrom.NOTHING)
    cost = (num_prompts + (4 if filters else 0) + (4 if world.fails else 0)) * (size + 1 - minimum + size)
    return Cell(name, Case(name, Scaled(config, num_prompts, window, ()), world), refused, cost)


class CellLine(NamedTuple):
    """The result of one cell."""

    name: str
    verdict: str
    """holds, violated or undetermined; or refused, by setup."""
    broken: str | None
    states: int
    transitions: int
    seconds: float
    cpu_s: float
    """Of CPU time, which other work on the machine does not change."""
    why: str

    @property
    def text(self) -> str:
        """One line for a person."""
        told = f"{self.name}  {self.verdict:<12}"
        if self.verdict == REFUSED_AT_SETUP:
            return told.rstrip()
        broken = f"  {self.broken}" if self.broken else ""
        why = f"  ({self.why.splitlines()[0]})" if self.why else ""
        return (
            f"{told} {self.states:>9,} states {self.transitions:>10,} transitions {self.seconds:>6.1f} s{broken}{why}"
        )


def run_cell(cell: Cell, bounds: Bounds) -> CellLine:
    """Explore one cell; the first violated property is reported."""
    if cell.refused is not None:
        return CellLine(cell.name, REFUSED_AT_SETUP, None, 0, 0, 0.0, 0.0, cell.refused)
    began_s = time.process_time()
    laws = laws_in(cell.case)
    result = explore(laws, cell.case.world, properties_of(laws), bounds=bounds)
    took_s = time.process_time() - began_s
    return CellLine(
        cell.name, result.verdict, result.broken, result.states, result.transitions, result.seconds, took_s, result.why
    )


def run_cells(cells: Sequence[Cell], bounds: Bounds, jobs: int) -> Generator[CellLine, None, None]:
    """Lines in the order in which the cells end, on `jobs` processes. Close it to end them early."""
    with closing(on_processes(partial(run_cell, bounds=bounds), cells, jobs)) as answers:
        for _, line in answers:
            yield line
