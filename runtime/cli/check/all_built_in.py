"""`evenstep check --all`: the matrix of configurations on all cores, one line each, and the totals."""

import json
import time
from collections import Counter
from contextlib import closing

import typer

from specs.check.cases import ScopeName
from specs.checker.explore import EXIT, HOLDS, UNDETERMINED, VIOLATED
from specs.engine.search import Bounds
from specs.evidence.matrix import REFUSED_AT_SETUP, CellLine, matrix, run_cells


def check_all(scope: ScopeName, bounds: Bounds, jobs: int, as_json: bool) -> int:
    """Run the matrix and print it. Returns the exit code of the worst verdict."""
    started_s = time.monotonic()
    cells = matrix(scope)
    lines: list[CellLine] = []
    with closing(run_cells(cells, bounds, jobs)) as found:
        for line in found:
            lines.append(line)
            if not as_json:
                typer.echo(f"{len(lines):>4}/{len(cells)}  {line.text}")
    counts = Counter(line.verdict for line in lines)
    verdicts = {name: counts[name] for name in (HOLDS, VIOLATED, UNDETERMINED, REFUSED_AT_SETUP)}
    totals: dict[str, float] = {
        "states": sum(line.states for line in lines),
        "transitions": sum(line.transitions for line in lines),
        "cpu_seconds": round(sum(line.cpu_s for line in lines), 1),
        "seconds": round(time.monotonic() - started_s, 1),
    }
    verdict = next((worst for worst in (VIOLATED, UNDETERMINED) if counts[worst]), HOLDS)
    if as_json:
        cells_values = [line._asdict() for line in lines]
        head = {"verdict": verdict, "scope": scope.value}
        typer.echo(json.dumps({**head, **totals, "verdicts": verdicts, "cells": cells_values}, indent=2))
    else:
        said = ", ".join(f"{counts[name]} {name}" for name in verdicts)
        typer.echo(
            f"{verdict}: {said}; {totals['states']:,} states, {totals['transitions']:,} transitions, "
            f"{totals['seconds']:,} s ({totals['cpu_seconds']:,} s of CPU), scope {scope.value}"
        )
    return EXIT[verdict]
