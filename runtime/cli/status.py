"""`evenstep status`: where a live run stands."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from runtime.explain.live import live_lines
from runtime.explain.remote import NotReachable, standing_of
from runtime.settings import ClusterConfig
from runtime.trace.show import printable

UNREACHABLE = 1
"""Exit code."""
_CLUSTER = ClusterConfig()


def status_command(
    run: Annotated[str, typer.Option("--run", help="The run, by its cluster.run_name.", metavar="NAME")],
    address: Annotated[str, typer.Option("--address", help="The Ray cluster; auto: the one of this machine.")] = "auto",
    namespace: Annotated[str, typer.Option("--namespace", help="cluster.namespace of the run.")] = _CLUSTER.namespace,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Say where a live run stands, once: what the train command shows on a terminal.

    Exit codes: 0 it was told, 1 the run can't be reached, 2 the command was used wrongly.

    Example: evenstep status --run run-20260131-140320
    """
    try:
        standing = standing_of(run, address, namespace)
    except NotReachable as error:
        typer.echo(f"evenstep status: {printable(str(error), widest=2_000)}", err=True)
        raise typer.Exit(UNREACHABLE) from None
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(standing)))
        return
    for line in live_lines(standing):
        typer.echo(line)
