"""`evenstep config`: every configuration key, from the blocks themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runtime.cli.reference import reference, refreshed


def config_command(
    write: Annotated[
        list[Path] | None,
        typer.Option("--write", help="Refresh the generated reference inside this document. Repeatable."),
    ] = None,
) -> None:
    """Print every configuration key with what it may hold, its default and its meaning, as Markdown.

    Example: evenstep config | grep staleness
    """
    if not write:
        typer.echo(reference(), nl=False)
        return
    for document in write:
        try:
            text = refreshed(document.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            typer.echo(f"evenstep config: {document} cannot be refreshed: {error}", err=True)
            raise typer.Exit(2) from None
        document.write_text(text, encoding="utf-8")
        typer.echo(f"refreshed {document}")
