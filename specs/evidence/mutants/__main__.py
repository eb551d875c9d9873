"""`python -m specs.evidence.mutants`: 0 if every mutant is killed or explained, 2 if not, 3 if time is up."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from specs.evidence.mutants.document import EXPLAINED, document
from specs.evidence.mutants.matrix import MatrixRow, all_mutants, core_coverage, proven_the_same, row_of

ACCOUNTED, UNEXPLAINED, OUT_OF_TIME = 0, 2, 3


def _line(row: MatrixRow) -> str:
    if row.killed is not None:
        return f"killed    {row.mutant.name}: {row.killed.by} in {row.killed.events} events ({row.killed.scope})"
    hit = f"; undetermined in {', '.join(row.undetermined)}" if row.undetermined else ""
    return f"survives  {row.mutant.name}: {EXPLAINED.get(row.mutant.name, 'UNEXPLAINED')}{hit}"


def main(arguments: Sequence[str]) -> int:
    """Print a line for each mutant; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m specs.evidence.mutants", description="Which property kills which mutant."
    )
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the kill matrix there")
    parser.add_argument("--only", metavar="WORD", default="", help="the mutants that have WORD in their name")
    parser.add_argument("--seconds", metavar="S", type=float, default=3_600.0, help="give up after that long")
    given = parser.parse_args(arguments)
    mutants = [mutant for mutant in all_mutants() if given.only in mutant.name]
    if given.write is not None and given.only:
        parser.error("--write needs all mutants; leave --only out")
    started_s = time.monotonic()
    coverage = core_coverage()
    rows: list[MatrixRow] = []
    for mutant in mutants:
        if time.monotonic() - started_s > given.seconds:
            typer.echo(f"out of time: {len(rows)} of {len(mutants)} mutants in {given.seconds:g} s; raise --seconds")
            return OUT_OF_TIME
        rows.append(row_of(mutant, coverage))
        typer.echo(_line(rows[-1]))
    killed = sum(row.killed is not None for row in rows)
    unexplained = [row.mutant.name for row in rows if row.killed is None and row.mutant.name not in EXPLAINED]
    seconds = time.monotonic() - started_s
    typer.echo(
        f"{len(rows)} mutants, {killed} killed, {len(rows) - killed} survive, {len(unexplained)} of them unexplained"
    )
    typer.echo(f"{seconds:.0f} s, {time.process_time():.0f} s of the processor")
    if given.write is not None:
        given.write.write_text(document(rows, proven_the_same(mutants, coverage)), encoding="utf-8")
    return UNEXPLAINED if unexplained else ACCOUNTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
