"""`evenstep eval`: a model measured on held-out prompts."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from fsm.errors import ConfigError
from runtime.cli.common import WRONG_USE, OutputRefused, require_writable, write_whole
from runtime.launch.examinee import Examinee, find_examinee, load_evaluation
from runtime.settings import Settings
from runtime.tasks.config import RowsTaskConfig
from runtime.trace.notes import EXIT_CODES
from runtime.trace.show import printable_lines
from runtime.wording import counted

if TYPE_CHECKING:
    from runtime.evaluation.sets import EvaluationSet
    from runtime.generation.engine import PolicyNotFinite
    from runtime.launch.evaluation import Measured, SetProgress, Watch

_LOW_TEMPERATURE = 1e-3
"""Below it, logits that are divided by the temperature may exceed the numbers of bfloat16 or float32."""
SAY_EVERY_S = 10.0
"""Without a terminal, a line about progress comes so often."""


def eval_command(
    model: Annotated[
        str,
        typer.Argument(
            help="Directory of a Hugging Face model, or of a run (its model/final), or tiny or smollm2.",
            metavar="MODEL|RUN",
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Argument(
            help="YAML with data, generation and validation. Without it: the config.yaml of the run.", metavar="CONFIG"
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Set one key, such as validation.rollouts_per_prompt=8. Repeatable.", metavar="KEY=VALUE"
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", help="Of a run: its checkpoint of this step.", metavar="K")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Measure this set of validation.sets alone. Repeatable.", metavar="SET"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, every prompt and completion included.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write that JSON to this file as well, over an earlier one.", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Measure a model on prompts that it is not trained on.

    Gives accuracy, pass@k, the mean reward and its parts, lengths, and the shares of completions that are cut off or
    have no verdict, each with a 95% confidence interval. The prompts are those that the data block holds out, sampled
    as generation and validation say; or those of every set in validation.sets, which has data and sampling of its own.
    docs/evaluation.md explains the figures.

    It runs in this process, without Ray. A verifier runs in processes that can be killed, as in a run.

    Exit codes: 0 measured, 1 the model or the engine failed, 2 the command or the configuration is wrong, 130
    interrupted.

    Example: evenstep eval runs/mine

    Example: evenstep eval runs/mine --step 200 --set validation.temperature=0.6 --set validation.rollouts_per_prompt=8

    Example: evenstep eval path/to/model sets.yaml -o figures.json
    """
    from runtime.launch.signals import interrupts_by_signals

    shown = Console(stderr=True)
    try:
        if output is not None:
            require_writable(output)
        examinee = find_examinee(model, step)
        read = _config_of(examinee, config)
        settings = load_evaluation(read, overrides or ())
        if output is not None:
            _refuse_input(output, read, settings, Path(examinee.model_name))
        sets = _chosen(settings, only or ())
        with interrupts_by_signals(), _progress(shown, sets) as watch:
            measured = _measure(settings, examinee, sets, shown, watch)
        everything = _as_json(settings, examinee, step, measured)
        if output is not None:
            write_whole(output, lambda file: json.dump(everything, file, indent=1), encoding="utf-8")
    except (ConfigError, OutputRefused) as error:
        typer.echo(f"evenstep eval: {printable_lines(str(error))}", err=True)
        raise typer.Exit(WRONG_USE) from None
    except KeyboardInterrupt:
        typer.echo("evenstep eval: interrupted; nothing is written", err=True)
        raise typer.Exit(EXIT_CODES["interrupted"]) from None
    if as_json:
        json.dump(everything, sys.stdout)
        typer.echo()
    else:
        _print(measured, examinee)


def _config_of(examinee: Examinee, given: Path | None) -> Path:
    if given is not None:
        return given
    if examinee.config is None:
        raise ConfigError(
            f"{examinee.says} does not lie in a run's directory, whose config.yaml would say which prompts to measure: "
            "name a YAML file after it, with data, generation and validation (docs/evaluation.md)"
        )
    return examinee.config


def _refuse_input(output: Path, config: Path, settings: Settings, model: Path) -> None:
    """Raise OutputRefused for a file that is measured, or that says what to measure."""
    datas = [settings.data, *(each.data for each in settings.sets)]
    paths = [data.task.path for data in datas if isinstance(data.task, RowsTaskConfig)]
    listed = [path for given in paths for path in ([given] if isinstance(given, str | Path) else given)]
    read = [config, *(Path(path) for path in listed)]
    if output.exists() and (
        any(same.resolve() == output.resolve() for same in read) or output.resolve().parent == model.resolve()
    ):
        raise OutputRefused(f"-o {output} is a file that is read: name another one")


def _chosen(settings: Settings, only: Sequence[str]) -> "list[EvaluationSet]":
    names = [each.name for each in settings.sets]
    for name in only:
        if name not in names:
            raise ConfigError(
                f"--only {name}: the configuration has no such set; its sets: {', '.join(names) or 'none'}"
            )
    return [each for each in settings.sets if not only or each.name in only]


def _measure(
    settings: Settings, examinee: Examinee, sets: "Sequence[EvaluationSet]", shown: Console, watch: "Watch"
) -> "list[Measured]":
    from runtime.launch.ray_session import set_process_environment

    set_process_environment(settings)  # before torch is imported
    from runtime.generation.engine import PolicyNotFinite
    from runtime.launch.evaluation import measure

    def tell(text: str) -> None:
        shown.print(Text(printable_lines(text)), soft_wrap=True)

    tell(f"measuring {examinee.says}")
    try:
        return measure(settings, examinee, sets, tell, watch)
    except PolicyNotFinite as error:
        typer.echo(f"evenstep eval: {_without_numbers(error, sets)}", err=True)
        raise typer.Exit(EXIT_CODES["failed"]) from None


def _without_numbers(error: "PolicyNotFinite", sets: "Sequence[EvaluationSet]") -> str:
    """What a model that gives no numbers means in an evaluation, where no step has been trained."""
    given = str(error).partition(";")[0]
    low = min((each.sampling.temperature for each in sets if each.sampling.temperature > 0), default=1.0)
    if low < _LOW_TEMPERATURE:
        return f"{given}: they are divided by a temperature of {low:.3g}; set validation.temperature to 0 for greedy"
    return (
        f"{given}: the weights of the model are to blame, or generation.engine.precision; measure an earlier "
        "checkpoint (--step), or take the model from its source again"
    )


@contextmanager
def _progress(console: Console, sets: "Sequence[EvaluationSet]") -> "Iterator[Watch]":
    """A bar for each set on a terminal; elsewhere a line now and then."""
    if not console.is_terminal:
        said_s = 0.0

        def say(progress: "SetProgress") -> None:
            nonlocal said_s
            now_s = time.monotonic()
            said_s = said_s or now_s  # from the first prompt on
            if now_s - said_s >= SAY_EVERY_S:
                said_s = now_s
                rated = f"{progress.rated} of {counted(progress.prompts, 'prompt')}"
                says = f"{progress.name}: {rated}, accuracy {progress.accuracy:.3f} so far"
                console.print(Text(says), soft_wrap=True)

        yield say
        return
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TextColumn("prompts, accuracy {task.fields[accuracy]:.3f}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {each.name: bars.add_task(each.name, total=None, accuracy=0.0, start=False) for each in sets}

        def show(progress: "SetProgress") -> None:
            task = tasks[progress.name]
            bars.start_task(task)
            bars.update(task, completed=progress.rated, total=progress.prompts, accuracy=progress.accuracy)

        yield show


def _as_json(
    settings: Settings, examinee: Examinee, step: int | None, measured: "Sequence[Measured]"
) -> dict[str, Any]:
    return {
        "evenstep": version("evenstep"),
        "model": examinee.model_name,
        "step": step,
        "config": settings.model_dump(mode="json"),
        "sets": {each.chosen.name: each.as_json() for each in measured},
    }


def _print(measured: "Sequence[Measured]", examinee: Examinee) -> None:
    from runtime.output.evaluation_table import COLUMN, figures_table
    from runtime.tasks.rewards import weights_of

    console = Console()
    width = COLUMN * (1 + len(measured))
    if not console.is_terminal:
        console = Console(width=max(console.width, width))
    console.print(Text(examinee.says), soft_wrap=True)
    weights = {each.chosen.name: weights_of(each.chosen.data.task) for each in measured}
    console.print(figures_table({each.chosen.name: each.figures for each in measured}, weights))
    console.print(Text("in brackets: 95% confidence intervals, over prompts"), soft_wrap=True)
    for each in measured:
        if each.figures.failures:
            said = f"{each.figures.failures} of {counted(each.figures.rollouts, 'rollout')} of {each.chosen.name}"
            why = f"have no verdict, and count as wrong; one of them: {each.figures.first_failure}"
            console.print(Text(f"{said} {why}"), soft_wrap=True)
