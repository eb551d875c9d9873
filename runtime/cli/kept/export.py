"""`evenstep export`: a run as trace events for the Perfetto viewer, or a checkpoint as a model."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from fsm.errors import ConfigError
from runtime.checkpoints.checkpoint import CHECKPOINTS, CheckpointRefused, list_checkpoints, step_of
from runtime.cli.common import (
    OutputRefused,
    TraceArgument,
    WrongUse,
    errors_as_exit_codes,
    showing_progress,
    write_whole,
)
from runtime.files import FileNotWritten
from runtime.models.directory import ModelDirectoryProblem, ModelNotSaved, UnsupportedModel
from runtime.output.directory import CONFIG, FINAL_MODEL
from runtime.report.collect import collect
from runtime.report.perfetto import write_events
from runtime.settings import load_settings
from runtime.trace.reader import open_trace
from runtime.trace.show import printable_lines
from runtime.wording import counted

_LOOK_S = 0.2


class ExportGroup(TyperGroup):
    """`evenstep export FILE --perfetto OUT` is short for `evenstep export trace FILE --perfetto OUT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer parses them; without the name of a command it is `trace`."""
        named = not args or args[0] in self.commands or args[0] == "--help"
        return super().parse_args(ctx, args if named else ["trace", *args])


export_app = typer.Typer(
    cls=ExportGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help=(
        "Write a run in a form that other programs read.\n\n"
        "`evenstep export model RUN -o DIR` makes a Hugging Face directory of a checkpoint. `evenstep export RUN "
        "--perfetto FILE` (short for `evenstep export trace`) writes events for the Perfetto viewer."
    ),
)


@export_app.command("trace")
def export_trace(
    file: TraceArgument,
    perfetto: Annotated[
        Path, typer.Option("--perfetto", help="The file of trace events to write, for ui.perfetto.dev.", metavar="FILE")
    ],
) -> None:
    """Write a run as trace events for the Perfetto viewer.

    The viewer then shows one track per rollout slot of each worker, the trainer's phases and calls, the steps, counters
    for in flight, ready, pool and queue, and an arrow from every trained group to its step.

    Exit codes: 0 written, 1 the trace cannot be read, 2 the events cannot be written or the command was used wrongly.

    Example: evenstep export runs/today --perfetto today.json
    """
    events: list[int] = []
    with errors_as_exit_codes("export"):
        trace = open_trace(file)
        with showing_progress(trace) as reached:
            collected = collect(trace, reached)
            write_whole(perfetto, lambda opened: events.append(write_events(collected, opened)))
    typer.echo(printable_lines(f"{perfetto}: {counted(events[0], 'event')}; open it at ui.perfetto.dev"))


@export_app.command("model")
def export_model_command(
    run: Annotated[Path, typer.Argument(help="The run's directory.", metavar="RUN")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The directory to write: new, or empty.", metavar="DIR")
    ],
    step: Annotated[
        int | None,
        typer.Option("--step", help="Optimizer steps of the checkpoint. Without it: the newest.", metavar="K"),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            "--max-shard-size",
            help="Largest file of weights, such as 5GB. Without it: transformers' default, 50GB.",
            metavar="SIZE",
        ),
    ] = None,
) -> None:
    """Make a Hugging Face model directory of a checkpoint.

    It holds the weights in the types of the model that training started from, in several files if they are large, the
    configuration, the tokenizer, the chat template, and a card (README.md) that says how the model was made.
    AutoModelForCausalLM, AutoTokenizer and vLLM load it, and evenstep takes it as policy.model_name.

    A run keeps its newest checkpoints (checkpointing.keep), and its last weights are already a model, in model/final.
    Checkpoints of several trainer ranks hold whole tensors, so one process exports them.

    Exit codes: 0 written, 1 the run or its checkpoint cannot be read, 2 the directory cannot be written or the command
    was used wrongly.

    Example: evenstep export model runs/today --step 200 -o sums-200
    """
    with errors_as_exit_codes("export model"):
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise WrongUse(f"{output} exists already and would be overwritten; name a new directory, or an empty one")
        taken = _export(run, step, output, max_shard_size)
    typer.echo(printable_lines(f"the weights after {counted(taken, 'step')} are written as a model\nmodel  {output}"))


def _export(run: Path, step: int | None, output: Path, max_shard_size: str | None) -> int:
    """Write the model and return its step. Raises WrongUse, OutputRefused and ConfigError."""
    settings = load_settings(_config_of(run))
    checkpoint = _chosen(run, step)
    console = Console(stderr=True)
    if console.is_terminal:
        console.print("loading torch", style="dim")
    from huggingface_hub.serialization._base import parse_size_to_int

    from runtime.launch.export_model import export_model
    from runtime.models.smollm2 import ModelPackageMissing

    try:
        if parse_size_to_int(max_shard_size or "1GB") < 1:
            raise ValueError
    except (ValueError, OverflowError):  # the latter for an infinite size
        raise WrongUse(f"--max-shard-size {max_shard_size}: allowed is a size such as 500MB or 5GB") from None
    try:
        with _showing_bytes(output.with_name(f".{output.name}.tmp"), console):
            export_model(run, checkpoint, settings, output, max_shard_size)
    except (CheckpointRefused, UnsupportedModel, ModelPackageMissing, ModelDirectoryProblem) as error:
        raise ConfigError(str(error)) from error
    except (ModelNotSaved, FileNotWritten) as error:
        raise OutputRefused(str(error)) from error
    return step_of(checkpoint)


def _config_of(run: Path) -> Path:
    """The configuration of a run. Raises ConfigError for a directory that is not one of a run."""
    if not (run / CONFIG).is_file():
        raise ConfigError(f"{run} is not the directory of a run: it has no {CONFIG}; name what --output named")
    return run / CONFIG


def _chosen(run: Path, step: int | None) -> Path:
    """The newest checkpoint, or the newest one of a step. Raises WrongUse, with the steps that there are."""
    found = list_checkpoints(run / CHECKPOINTS)
    if not found:
        raise ConfigError(
            f"{run / CHECKPOINTS} holds no checkpoint (checkpointing.enabled); the last weights of a run that ended "
            f"are in {run / FINAL_MODEL}"
        )
    chosen = next((path for path in found if step in (None, step_of(path))), None)
    if chosen is None:
        steps = ", ".join(str(known) for known in sorted({step_of(path) for path in found}))
        raise WrongUse(f"--step {step}: no checkpoint of {run} has so many steps; there are: {steps}")
    return chosen


@contextmanager
def _showing_bytes(folder: Path, console: Console) -> Iterator[None]:
    """On a terminal, show how much has been written below a folder."""
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    over = threading.Event()
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("checking the weights", total=None)

        def look() -> None:
            while not over.wait(_LOOK_S):
                with suppress(OSError):  # renamed meanwhile
                    written = sum(path.stat().st_size for path in folder.rglob("*"))
                    if written:
                        shown.update(task, completed=written, description="writing")

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()
