"""Runs the cells of a suite on several processes."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from specs.check.cases import laws_in
from specs.checker.explore import explore
from specs.engine.search import Bounds
from specs.evidence.matrix.cells import REFUSED_AT_SETUP, Cell
from specs.processes.pool import on_processes
from specs.properties.kinds import properties_of


class CellLine(NamedTuple):
    """What became of one cell."""

    name: str
    verdict: str
    """holds, violated or undetermined; or refused, by setup."""
    broken: str | None
    states: int
    transitions: int
    seconds: float
    cpu_s: float
    """Of CPU time: what `seconds` is on a machine that does nothing else."""
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
    """Go through one cell; the first property that is violated is told."""
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
    """Lines as the cells come, on `jobs` processes. Close it to end them early. Raises as `on_processes` does."""
    with closing(on_processes(partial(run_cell, bounds=bounds), cells, jobs)) as answers:
        for _, line in answers:
            yield line
