"""`evenstep train`: a run of asynchronous GRPO."""

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
    """A command whose --resume needs no value; Typer has no option for that."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer parses them; --resume without a checkpoint becomes --resume=newest."""
        return super().parse_args(ctx, list(_with_checkpoint_named(args)))


def _with_checkpoint_named(words: Sequence[str]) -> Iterator[str]:
    """The word after --resume is its checkpoint, unless it is an option or the run's YAML."""
    for word, following in pairwise([*words, "--"]):
        alone = following.startswith("-") or following.endswith((".yaml", ".yml"))
        yield f"--resume={NEWEST}" if word == "--resume" and alone else word


def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="The run's YAML. Without it: the default run, or with --resume the configuration that the run had.",
            metavar="CONFIG",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set one key, such as grpo.max_num_steps=100. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    summary: Annotated[
        Path | None, typer.Option("--summary", help="Write the run's outcome to this file, as JSON.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Directory of the run. Without it: runs/TIME.", metavar="DIR")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            help="Resume the run in --output from this checkpoint (its directory, or its name there); without a name, "
            "from the newest complete one.",
            metavar="[CHECKPOINT]",
        ),
    ] = None,
    new_data: Annotated[
        bool,
        typer.Option(
            "--new-data",
            help="With --resume: accept other data than the checkpoint's. Trained prompts stay, others are dropped; "
            "the new data is read from its start.",
        ),
    ] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Set seed and data.seed.", metavar="N")] = None,
) -> None:
    """Train a language model with asynchronous GRPO.

    Without CONFIG it trains a tiny transformer to reverse letters, on two CPU cores, within two minutes.

    However a run ends, except by kill -9, it saves the last weights: a checkpoint for --resume, and model/final, a
    Hugging Face directory. Ctrl-C, SIGTERM and SIGHUP let the run finish and save; a second signal ends it at once.

    Exit codes: 0 the run completed, 1 a limit of its configuration stopped it or it failed, 2 the command or the
    configuration is wrong, 130 it was interrupted.

    Example: evenstep train --set grpo.max_num_steps=50 --summary summary.json
    """
    from runtime.control.failures import InterruptedAtStart, RunFailed
    from runtime.launch.progress import open_progress
    from runtime.launch.run import run_training
    from runtime.output.directory import CONFIG, MARK

    console = Console()
    try:
        _refuse_wrong_use(resume, output, summary, new_data=new_data)
        if resume is not None and config is None and output is not None and (output / CONFIG).is_file():
            config = output / CONFIG
        seeds = [] if seed is None else [f"seed={seed}", f"data.seed={seed}"]
        settings = load_settings(config, [*(overrides or ()), *seeds])
        request = None if resume is None else ResumeRequest(resume, accepts_other_data=new_data)
        directory = output or Path("runs") / time.strftime("%Y%m%d-%H%M%S")
        if summary is not None and (directory / MARK).exists():
            summary.unlink(missing_ok=True)  # an earlier start's, which trained nothing
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
        _end_unbegun("interrupted", RuntimeError("interrupted again before it could save and end"), summary)
    else:
        _end(result, summary, console)


def _refuse_wrong_use(resume: str | None, output: Path | None, summary: Path | None, *, new_data: bool) -> None:
    """Raise ConfigError for options that contradict each other, or a summary that could not be written."""
    from runtime.files import why_not_plain

    if resume is not None and output is None:
        raise ConfigError("--resume needs --output, the directory of the run to resume")
    if new_data and resume is None:
        raise ConfigError("--new-data needs --resume: a new run takes any data")
    if summary is not None and not summary.resolve().parent.is_dir():
        raise ConfigError(
            f"--summary {summary}: there is no directory {summary.resolve().parent}, so the outcome could not be "
            f"written; create it, or name another file"
        )
    if summary is not None and (problem := why_not_plain(summary)):
        raise ConfigError(f"--summary {summary}: {problem}, which would be replaced; name another file")


def _end_unbegun(status: Status, error: Exception, summary: Path | None, traceback: str | None = None) -> NoReturn:
    """Report the end of a run that trained nothing, and exit."""
    if traceback is not None:
        typer.echo(traceback, err=True)
    typer.echo(f"evenstep train: {error}", err=True)
    value = {"status": status, "error": str(error), "steps": 0, "closed": [], "model": None, "checkpoint": None}
    _write(summary, value, EXIT_CODES[status])


def _end(result: "RunResult", summary: Path | None, console: Console) -> NoReturn:
    from runtime.launch.signals import uninterrupted
    from runtime.output.summary import print_summary

    outcome = result.outcome
    says = outcome.status if outcome.error is None else f"{outcome.status}: {outcome.error}"
    with uninterrupted():
        notes = (*result.warnings, *result.to_continue)
        print_summary(result.summary, console, outcome=says, notes=notes, places=result.places)
        sys.stdout.flush()
        _write(summary, result.as_json(), EXIT_CODES[outcome.status])


def _write(summary: Path | None, value: dict[str, Any], exit_code: int) -> NoReturn:
    """Write the summary and exit. If it cannot be written, the command fails."""
    from runtime.files import FileNotWritten, write_json_aside, writing

    if summary is not None:
        try:
            with writing(summary, "the output above has its main figures"):
                write_json_aside(summary.resolve(), value)
        except FileNotWritten as error:
            typer.echo(f"evenstep train: {error}", err=True)
            raise typer.Exit(exit_code or EXIT_CODES["failed"]) from None
    raise typer.Exit(exit_code)
