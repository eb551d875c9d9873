"""`python -m specs.evidence.twins`: exits with 0 if all counts agree, 2 if some differ, 1 if none could be compared."""

import argparse
import sys
from collections.abc import Sequence

import typer

from specs.evidence.small_run import SmallRun
from specs.evidence.twins.compare import CONFIGURATIONS, TWINS, Twin, line, rows
from specs.evidence.twins.counts import ToolFailed

AGREE, FAILED, DIFFER = 0, 1, 2


def main(
    arguments: Sequence[str],
    twins: Sequence[Twin] = TWINS,
    configurations: Sequence[SmallRun] = CONFIGURATIONS,
) -> int:
    """Print a row for each configuration and side; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m specs.evidence.twins", description="Compare the core with its twins."
    )
    parser.add_argument("--allow-missing", action="store_true", help="exit with 0 if neither SPIN nor TLC is installed")
    parser.add_argument("--only", metavar="WORD", default="", help="the configurations that have WORD in their name")
    given = parser.parse_args(arguments)
    chosen = [run for run in configurations if given.only in run.name]
    if not chosen:
        there_are = "; ".join(run.name for run in configurations)
        typer.echo(f"no configuration has {given.only!r} in its name; there are: {there_are}")
        return FAILED
    there = []
    for twin in twins:
        absent = twin.missing()
        if absent is None:
            there.append(twin)
        else:
            typer.echo(absent)
    if not there:
        typer.echo(
            "skipped: no twin can run here" if given.allow_missing else "nothing was compared: no twin can run here"
        )
        return AGREE if given.allow_missing else FAILED
    differing = compared = 0
    try:
        for row in rows(chosen, there):
            typer.echo(line(row))
            compared += row.side != "evenstep"
            differing += not row.agrees
    except ToolFailed as failed:
        typer.echo(str(failed))
        return FAILED
    if differing:
        typer.echo(f"{differing} of {compared} comparisons differ: the core or a twin does not do what the rules say")
        return DIFFER
    typer.echo(
        f"{compared} comparisons, no difference. Seconds are processor time of the search, for TLC with Java's own."
    )
    return AGREE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
