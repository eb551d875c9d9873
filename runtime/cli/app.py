"""The command line. Exit codes: 0 all is well, 1 something does not hold, 2 the command was used wrongly.

`evenstep check` has its own (`specs.checker.explore.EXIT`): 2 says that a property is violated, 3 that a bound was
hit. So has `evenstep explain`, by verdict (`runtime.explain.explanation.EXIT`).
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from runtime.cli.check.command import CheckCommand, check
from runtime.cli.config import config_command
from runtime.cli.diagram import diagram
from runtime.cli.explain import explain_command
from runtime.cli.export import export_command
from runtime.cli.replay import replay_command
from runtime.cli.report import report_command
from runtime.cli.scenario import scenario_app
from runtime.cli.status import status_command
from runtime.cli.trace import trace
from runtime.cli.train import TrainCommand, train

app = typer.Typer(
    name="evenstep",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "Asynchronous GRPO whose control core is a set of explicit, model-checked state machines.\n\n"
        "Every training step comes out even: selected + charged = step size."
    ),
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"evenstep {version('evenstep')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


app.command("train", cls=TrainCommand)(train)
app.command("check", cls=CheckCommand)(check)
app.add_typer(scenario_app, name="scenario")
app.command("config")(config_command)
app.command("diagram")(diagram)
app.command("trace")(trace)
app.command("replay")(replay_command)
app.command("explain")(explain_command)
app.command("report")(report_command)
app.command("export")(export_command)
app.command("status")(status_command)
