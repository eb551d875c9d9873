"""`evenstep samples`: what the policy said."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fsm.effects import ClearReason
from runtime.cli.common import WrongUse, errors_as_exit_codes
from runtime.files import Json
from runtime.samples.book import READY
from runtime.samples.choose import Pick, Wanted, chosen, through_time
from runtime.samples.file import SamplesFile, samples_of
from runtime.samples.printed import printed
from runtime.trace.records import printable_json
from runtime.wording import counted

_FEW = 5
"""Samples shown, unless a step or a prompt narrows them down."""
_FATES = (*(reason.value for reason in ClearReason), READY)


def samples_command(
    run: Annotated[Path, typer.Argument(help="The run's directory, or its samples.jsonl.", metavar="RUN")],
    pick: Annotated[
        Pick,
        typer.Option("--pick", help="Which to show: the newest, of best or worst reward, random, or changed most."),
    ] = Pick.NEWEST,
    number: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=1,
            max=10**9,
            help=f"How many; with --pick changed, pairs. Without it: {_FEW}, or all with --step or --prompt.",
            metavar="N",
        ),
    ] = None,
    step: Annotated[int | None, typer.Option("--step", help="Only of this step; the first is 0.", metavar="K")] = None,
    prompt: Annotated[
        int | None,
        typer.Option(
            "--prompt",
            help="One prompt through time: of every epoch in which its item was sampled, in order.",
            metavar="P",
        ),
    ] = None,
    fate: Annotated[
        str | None,
        typer.Option("--fate", help=f"Only of groups that were so: {', '.join(_FATES)}.", metavar="FATE"),
    ] = None,
    truncated: Annotated[bool, typer.Option("--truncated", help="Only those that a length limit cut off.")] = False,
    find: Annotated[
        str | None, typer.Option("--find", help="Only with this text, in the prompt or a turn.", metavar="TEXT")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of --pick random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead.")] = False,
) -> None:
    """Show what the policy said: prompts, completions, rewards, advantages, and whether they were trained.

    A live run can be looked at, too. Each step keeps a few samples (samples.per_step), also of groups without variance
    and of completions that were cut off. `--pick changed` shows, of items that came in several epochs, an early and a
    late completion: those whose reward changed most come first.

    Exit codes: 0 shown, 1 the samples cannot be read, 2 none is as asked for or the command was used wrongly.

    Examples: evenstep samples runs/today --step 12; evenstep samples runs/today --pick worst --fate trained -n 3
    """
    with errors_as_exit_codes("samples"):
        if fate is not None and fate not in _FATES:
            raise WrongUse(f"--fate {fate}: allowed are {', '.join(_FATES)}")
        file = samples_of(run)
        wanted = Wanted(step, fate, truncated, find)
        among = wanted.among(file.read() if prompt is None else through_time(file, prompt))
        all_of_them = pick is Pick.NEWEST and not (step is None and prompt is None)
        found = list(among) if number is None and all_of_them else chosen(among, pick, number or _FEW, seed)
        if not found:
            raise WrongUse(_what_there_is(file, pick))
    _print(found, file, as_json)


def _what_there_is(file: SamplesFile, pick: Pick) -> str:
    """For a user whose question no sample answers."""
    samples, last = 0, -1
    for sample in file.read():
        samples, last = samples + 1, sample["step"]
    if not samples:
        return f"{file.path} has no sample yet; the first come when a step closes"
    changed = " in two epochs" if pick is Pick.CHANGED else ""
    return (
        f"no sample is as asked for{changed}; {file.path} has {counted(samples, 'sample')}, the last of step {last}. "
        "samples.per_step says how many a run keeps"
    )


def _print(samples: Iterable[Json], file: SamplesFile, as_json: bool) -> None:
    if as_json:
        for sample in samples:
            typer.echo(printable_json(sample))
    else:
        plain: Any = {"highlight": False, "markup": False, "emoji": False}
        console = Console(**plain)
        for line in printed(samples):
            console.print(line, soft_wrap=not console.is_terminal)
    if file.skipped:
        typer.echo(
            f"{counted(file.skipped, 'line')} of {file.path} are torn or of another program, and were skipped", err=True
        )
