"""`evenstep train`: a run of asynchronous GRPO."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperCommand

from fsm.errors import ConfigError
from runtime.checkpoints.resume import NEWEST, ResumeRequest
from runtime.settings import load_settings
from runtime.trace.notes import EXIT_CODES, Status

if TYPE_CHECKING:
    from runtime.launch.run import RunResult

WRONG_USE = 2


class TrainCommand(TyperCommand):
    """A command whose --resume may stand alone, which Typer knows no way to say."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left; --resume is read as --resume=newest where no checkpoint follows it."""
        return super().parse_args(ctx, list(_with_checkpoint_named(args)))


def _with_checkpoint_named(words: Sequence[str]) -> Iterator[str]:
    """What follows --resume is its checkpoint, unless it is an option or the run's YAML."""
    for word, following in pairwise([*words, "--"]):
        alone = following.startswith("-") or following.endswith((".yaml", ".yml"))
        yield f"--resume={NEWEST}" if word == "--resume" and alone else word


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
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            help="Go on with the run in --output: from this checkpoint (its directory, or its name there); without a "
            "name, from the newest whole one.",
            metavar="[CHECKPOINT]",
        ),
    ] = None,
    new_data: Annotated[
        bool,
        typer.Option(
            "--new-data",
            help="With --resume: the data may be other than the checkpoint's. What is trained stays, what is not is "
            "dropped, and the new data is read from its start.",
        ),
    ] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Sets seed and data.seed.", metavar="N")] = None,
) -> None:
    """Train a language model with asynchronous GRPO.

    Without a file it trains a tiny transformer to reverse letters, on two CPU cores, within two minutes.

    Every end but kill -9 saves the last weights: a checkpoint to go on from (--resume), and model/final, a Hugging
    Face directory. Ctrl-C, SIGTERM and SIGHUP end a run in good order; a second one at once.

    Exit codes: 0 the run completed, 1 a limit of its configuration stopped it, or it failed, 2 the command or the
    configuration is wrong, 130 it was interrupted.

    Example: evenstep train --set grpo.max_num_steps=50 --summary summary.json
    """
    from runtime.control.failures import InterruptedAtStart, RunFailed
    from runtime.files import why_not_plain
    from runtime.launch.progress import open_progress
    from runtime.launch.run import run_training
    from runtime.output.directory import MARK

    console = Console()
    try:
        if resume is not None and output is None:
            raise ConfigError("--resume needs --output, the directory of the run to go on with")
        if new_data and resume is None:
            raise ConfigError("--new-data needs --resume: a new run starts with whatever data it is given")
        if summary is not None and not summary.resolve().parent.is_dir():
            raise ConfigError(
                f"--summary {summary}: there is no directory {summary.resolve().parent}, so the end of the run could "
                f"not be written; make it, or name another file"
            )
        if summary is not None and (problem := why_not_plain(summary)):
            raise ConfigError(f"--summary {summary}: {problem}, and would be replaced by one; name another file")
        seeds = [] if seed is None else [f"seed={seed}", f"data.seed={seed}"]
        settings = load_settings(config, [*(overrides or ()), *seeds])
        request = None if resume is None else ResumeRequest(resume, accepts_other_data=new_data)
        directory = output or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        if summary is not None and (directory / MARK).exists():
            summary.unlink(missing_ok=True)  # of a start that came to nothing, perhaps in its own directory
        with open_progress(console, settings.grpo.max_num_steps) as listener:
            result = run_training(settings, directory, resume=request, listener=listener)
    except ConfigError as error:
        typer.echo(f"evenstep train: {error}", err=True)
        raise typer.Exit(WRONG_USE) from None
    except RunFailed as error:
        _end_unbegun(error.status, error, summary, error.traceback)
    except InterruptedAtStart as error:
        _end_unbegun("interrupted", error, summary)
    except KeyboardInterrupt:
        _end_unbegun("interrupted", RuntimeError("interrupted again before it could end in good order"), summary)
    else:
        _end(result, summary, console)


def _end_unbegun(status: Status, error: Exception, summary: Path | None, traceback: str | None = None) -> NoReturn:
    """The end of a run that trained nothing."""
    if traceback is not None:
        typer.echo(traceback, err=True)
    typer.echo(f"evenstep train: {error}", err=True)
    value = {"status": status, "error": str(error), "steps": 0, "closed": [], "model": None, "checkpoint": None}
    _write(summary, value, EXIT_CODES[status])


def _end(result: RunResult, summary: Path | None, console: Console) -> NoReturn:
    from runtime.launch.signals import uninterrupted
    from runtime.output.summary import print_summary

    outcome = result.outcome
    says = outcome.status if outcome.error is None else f"{outcome.status}: {outcome.error}"
    with uninterrupted():
        print_summary(result.summary, console, outcome=says, lost=outcome.lost, places=result.places)
        sys.stdout.flush()
        _write(summary, result.as_json(), EXIT_CODES[outcome.status])


def _write(summary: Path | None, value: dict[str, Any], exit_code: int) -> NoReturn:
    """The last thing that is done. A summary that was asked for and can't be written is no success."""
    from runtime.files import FileNotWritten, write_json_aside, writing

    if summary is not None:
        try:
            with writing(summary, "what it would say is printed above, in short"):
                write_json_aside(summary.resolve(), value)
        except FileNotWritten as error:
            typer.echo(f"evenstep train: {error}", err=True)
            raise typer.Exit(exit_code or EXIT_CODES["failed"]) from None
    raise typer.Exit(exit_code)
