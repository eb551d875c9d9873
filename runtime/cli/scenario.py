"""`evenstep scenario run`: scenario files against the real core."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runtime.launch.signals import LOADING_S, answering_within
from runtime.trace.show import printable_lines
from runtime.wording import counted
from specs.scenarios.run import ScenarioVerdict, find_scenarios, run_file

scenario_app = typer.Typer(
    no_args_is_help=True,
    help="Run scenario files: a configuration, what happens, and what must then be true.",
)


@scenario_app.callback()
def scenarios() -> None:
    """Keeps `run` a subcommand while it is the only one."""


@scenario_app.command("run")
def run(
    paths: Annotated[list[Path], typer.Argument(help="Scenario files, or directories with some.", metavar="PATH")],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show after each move what the run waits for.")
    ] = False,
    setup_checks: Annotated[
        bool,
        typer.Option(
            "--setup-checks/--no-setup-checks",
            help="Refuse a configuration that a run would refuse; or run it anyway, to see what goes wrong.",
        ),
    ] = True,
) -> None:
    """Run scenarios against the real core, with no Ray, no torch and no clock.

    Prints one line per scenario. docs/scenarios.md lists all moves and expectations.

    Exit codes: 0 all scenarios hold, 1 one does not or has a mistake, 2 a path is wrong.

    Example: evenstep scenario run tests/scenarios
    """
    try:
        files = find_scenarios(paths)
    except OSError as error:
        typer.echo(f"evenstep scenario run: {error}", err=True)
        raise typer.Exit(2) from None
    console = Console()
    verdicts = []
    for file in files:
        log: list[str] = []
        with answering_within(LOADING_S):
            verdict = run_file(file, log.append if verbose else None, check_setup=setup_checks)
        verdicts.append(verdict)
        if verbose or not console.is_terminal:
            _print_plain(verdict, log)
    if console.is_terminal and not verbose:
        console.print(_table(verdicts))
    failed = sum(not verdict.holds for verdict in verdicts)
    held = _verb(len(verdicts) - failed, "hold")
    typer.echo(f"{counted(len(verdicts), 'scenario')}: {held}, {_verb(failed, 'fail')}")
    raise typer.Exit(1 if failed else 0)


def _verb(number: int, verb: str) -> str:
    return f"{number} {verb}{'s' if number == 1 else ''}"


def _print_plain(verdict: ScenarioVerdict, log: list[str]) -> None:
    typer.echo(f"{'holds' if verdict.holds else 'FAILS'}  {verdict.path}  {printable_lines(verdict.name)}")
    for line in [*log, *(line for problem in verdict.problems for line in problem.splitlines())]:
        typer.echo(f"         {printable_lines(line)}")


def _table(verdicts: list[ScenarioVerdict]) -> Table:
    table = Table("", "scenario", "what it shows", show_lines=False)
    for verdict in verdicts:
        mark = Text("holds", style="green") if verdict.holds else Text("FAILS", style="bold red")
        says = "\n".join([verdict.name, *verdict.problems]).strip()
        table.add_row(mark, Text(str(verdict.path)), Text(printable_lines(says)))
    return table
