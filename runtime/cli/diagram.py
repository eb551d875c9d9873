"""`evenstep diagram`: the machines as Mermaid, from the rule tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fsm.machines.catalog import ALL_TABLES
from specs.evidence.diagrams import find_table, mermaid, refreshed


def diagram(
    machine: Annotated[
        str | None, typer.Argument(help="One machine, such as Trainer; all of them where none is named.")
    ] = None,
    write: Annotated[
        list[Path] | None,
        typer.Option("--write", help="Refresh the generated diagrams inside this document. Repeatable."),
    ] = None,
) -> None:
    """Print the state diagrams of the machines as Mermaid, or refresh those in a document."""
    if write:
        for document in write:
            if not document.is_file():
                typer.echo(f"evenstep diagram: {document} is not a file", err=True)
                raise typer.Exit(2)
            document.write_text(refreshed(document.read_text(encoding="utf-8")), encoding="utf-8")
            typer.echo(f"refreshed {document}")
        return
    try:
        tables = ALL_TABLES if machine is None else (find_table(machine),)
    except KeyError as unknown:
        typer.echo(f"evenstep diagram: {unknown.args[0]}", err=True)
        raise typer.Exit(2) from None
    typer.echo("\n".join(mermaid(table) for table in tables), nl=False)
