"""`evenstep train`: a run of asynchronous GRPO."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fsm.errors import ConfigError
from runtime.settings import load_settings

COMPLETED, STOPPED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""


def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML file of the run; without one, the default run.", metavar="[CONFIG]"),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set one key, as in grpo.max_num_steps=100. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    summary: Annotated[Path | None, typer.Option("--summary", help="Write the end of the run here, as JSON.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Directory of the run; without one, runs/<time>.", metavar="DIR")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --output.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Sets seed and data.seed.", metavar="N")] = None,
) -> None:
    """Train a language model with asynchronous GRPO.

    Without a file it trains a tiny transformer to reverse letters, on two CPU cores, within two minutes.

    Exit codes: 0 the run completed, 1 a limit of its configuration stopped it, or it failed, 2 the command or the
    configuration is wrong, 130 it was interrupted.

    Example: evenstep train --set grpo.max_num_steps=50 --summary summary.json
    """
    from runtime.durable import write_json_aside
    from runtime.plain_files import why_not_plain
    from runtime.progress import open_progress
    from runtime.run import InterruptedAtStart, RunFailed, run_training
    from runtime.summary import print_summary

    console = Console()
    try:
        if resume and output is None:
            raise ConfigError("--resume needs --output, the directory of the run to go on with")
        if summary is not None and not summary.resolve().parent.is_dir():
            raise ConfigError(
                f"--summary {summary}: there is no directory {summary.resolve().parent}, so the end of the run could "
                f"not be written; make it, or name another file"
            )
        if summary is not None and (problem := why_not_plain(summary)):
            raise ConfigError(f"--summary {summary}: {problem}, and would be replaced by one; name another file")
        seeds = [] if seed is None else [f"seed={seed}", f"data.seed={seed}"]
        settings = load_settings(config, [*(overrides or ()), *seeds])
        directory = output or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        with open_progress(console, settings.grpo.max_num_steps) as listener:
            result = run_training(settings, directory, resume=resume, listener=listener)
    except ConfigError as error:
        typer.echo(f"evenstep train: {error}", err=True)
        raise typer.Exit(WRONG_USE) from None
    except RunFailed as error:
        typer.echo(f"evenstep train: {error}", err=True)
        raise typer.Exit(STOPPED) from None
    except InterruptedAtStart as error:
        typer.echo(f"evenstep train: {error}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        typer.echo("evenstep train: interrupted before it could end in good order", err=True)
        raise typer.Exit(INTERRUPTED) from None
    outcome = result.outcome
    if summary is not None:
        write_json_aside(summary.resolve(), result.as_json())
    says = outcome.status if outcome.error is None else f"{outcome.status}: {outcome.error}"
    print_summary(result.summary, console, outcome=says, places=result.places)
    sys.stdout.flush()
    raise typer.Exit({"completed": COMPLETED, "stopped": STOPPED, "interrupted": INTERRUPTED}[outcome.status])
