"""`evenstep try`: prompts as the model gets them, and rewards, in seconds."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from fsm.errors import ConfigError
from runtime.cli.common import UNREADABLE, WRONG_USE
from runtime.settings import load_settings
from runtime.trace.notes import EXIT_CODES
from runtime.trace.show import printable_lines
from runtime.wording import counted

if TYPE_CHECKING:
    from runtime.launch.try_out import TriedCompletion, TriedPrompt


def try_command(
    config: Annotated[
        Path | None, typer.Argument(help="The run's YAML. Without it: the default run.", metavar="CONFIG")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set one key, such as data.shuffle=true. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    prompts: Annotated[
        int, typer.Option("--prompts", "-n", min=1, max=10**9, help="How many prompts to show.", metavar="N")
    ] = 3,
) -> None:
    """Look at a run's first prompts and rewards in seconds, without Ray and without sampling.

    Loads the configuration, the data, the tokenizer and your verifier or environment. Shows the first prompts in the
    order of the run as the model gets them, templates and special tokens included. Then rates some completions with
    your code, in processes that can be killed: the row's own answer, another row's answer, an empty completion, and
    the prompt said again; in an environment, its demonstration and a policy that says nothing. Each reward is shown by
    part.

    It refuses what `evenstep train` would refuse at its start, in the same words, except for the machine and the output
    directory.

    Exit codes: 0 every completion has a verdict, 1 one has none, 2 the command, the configuration or the data is wrong,
    130 interrupted.

    Example: evenstep try mine.yaml

    Example: evenstep try mine.yaml --set data.task.verifier=my_verifiers:strict --prompts 10
    """
    from runtime.launch.progress import open_progress
    from runtime.launch.ray_session import set_process_environment
    from runtime.launch.signals import interrupts_by_signals
    from runtime.tasks.rewards import weights_of

    try:
        settings = load_settings(config, overrides or ())
        set_process_environment(settings)  # before torch is imported
        from runtime.launch.try_out import try_out

        with interrupts_by_signals(), open_progress(Console(stderr=True), None) as listener:
            tried = try_out(settings, prompts, listener)
    except ConfigError as error:
        typer.echo(f"evenstep try: {printable_lines(str(error))}", err=True)
        raise typer.Exit(WRONG_USE) from None
    except KeyboardInterrupt:
        typer.echo("evenstep try: interrupted", err=True)
        raise typer.Exit(EXIT_CODES["interrupted"]) from None
    console, weights = Console(), weights_of(settings.data.task)
    for prompt in tried:
        for line in _printed(prompt, weights):
            console.print(line, soft_wrap=True)
    for sentence in _summed_up(tried):
        console.print(Text(printable_lines(sentence)), soft_wrap=True)
    if any(isinstance(said.rated, str) for prompt in tried for said in prompt.completions):
        raise typer.Exit(UNREADABLE)


def _printed(prompt: "TriedPrompt", weights: Mapping[str, float]) -> Iterator[Text]:
    from runtime.samples.printed import spoken
    from runtime.trace.show import printable

    yield Text(printable(f"{prompt.where} · {counted(prompt.tokens, 'token')}", widest=500), "reverse")
    yield from spoken("prompt", prompt.text, "dim")
    for said in prompt.completions:
        yield Text(printable(f"if it says {said.what}: {_verdict(said, weights)}", widest=2_000), "bold")
        for number, text in enumerate(said.turns):
            yield from spoken("environment" if number % 2 else "policy", text)
    yield Text()


def _verdict(said: "TriedCompletion", weights: Mapping[str, float]) -> str:
    from runtime.samples.printed import worth

    if isinstance(said.rated, str):
        return f"no verdict: {said.rated}"
    return worth(said.rated.reward, said.rated.parts, weights, correct=said.rated.correct)


def _summed_up(tried: "list[TriedPrompt]") -> Iterator[str]:
    """How many answers are right, and what would mislead training."""
    from runtime.tasks.base import Verdict

    answers = [said.rated for prompt in tried for said in prompt.completions if said.is_answer]
    unrated = [rated for rated in answers if isinstance(rated, str)]
    right = sum(isinstance(rated, Verdict) and rated.correct for rated in answers)
    if answers:
        shown = any(said.what == "the demonstration" for prompt in tried for said in prompt.completions)
        what = counted(len(answers), "demonstration" if shown else "answer")
        of_all = f"{right} of {what}{' of the environment' if shown else ' of the data'}"
        yield f"{of_all} {'is' if len(answers) == 1 else 'are'} rated right"
    if unrated:
        have = "has" if len(unrated) == 1 else "have"
        yield f"{counted(len(unrated), 'answer')} of the data {have} no verdict; the first reason: {unrated[0]}"
    if right + len(unrated) < len(answers):
        yield (
            "an answer is rated wrong: unless the verifier wants more than the answer, such as a format, look at "
            "data.task.columns.answer, the verifier and data.task.correct_at"
        )
    for prompt in tried:
        verdicts = [(said, said.rated) for said in prompt.completions if isinstance(said.rated, Verdict)]
        for said, rated in verdicts:
            if rated.correct and not said.is_answer:
                yield f"{prompt.where}: {said.what} is rated right, which it hardly is"
        if len({rated.reward for _, rated in verdicts}) == 1 < len(verdicts):
            yield f"{prompt.where}: all of these have the same reward, and a group without variance trains nothing"
