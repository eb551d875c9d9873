"""The list of commands. Exit codes: 0 success, 1 failure or unreadable input, 2 the command was used wrongly.

Different are `evenstep check` (`specs.checker.explore.EXIT`: 2 violated, 3 undetermined), `evenstep replay` (2 a
difference), `evenstep migrate` (3 refused as written) and `evenstep explain` (by verdict:
`runtime.explain.explanation.EXIT`).
"""

from importlib.metadata import version
from typing import Annotated

import typer

from runtime.cli.check.command import CheckCommand, check
from runtime.cli.config import config_command
from runtime.cli.diagram import diagram
from runtime.cli.evaluate import eval_command
from runtime.cli.explain import explain_command, status_command
from runtime.cli.kept.export import export_app
from runtime.cli.kept.samples import samples_command
from runtime.cli.migrate import migrate
from runtime.cli.replay import replay_command
from runtime.cli.report import report_command
from runtime.cli.scenario import scenario_app
from runtime.cli.trace import trace
from runtime.cli.train import TrainCommand, train
from runtime.cli.try_out import try_command

app = typer.Typer(
    name="evenstep",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph, which the docstrings wrap
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
app.command("try")(try_command)
app.command("eval")(eval_command)
app.command("check", cls=CheckCommand)(check)
app.add_typer(scenario_app, name="scenario")
app.command("config")(config_command)
app.command("migrate")(migrate)
app.command("diagram")(diagram)
app.command("trace")(trace)
app.command("replay")(replay_command)
app.command("explain")(explain_command)
app.command("report")(report_command)
app.command("samples")(samples_command)
app.add_typer(export_app, name="export")
app.command("status")(status_command)
