"""`evenstep check`: prove, before a run starts, that its configuration, or a sampler of one's own, cannot go wrong."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from fsm.errors import ConfigError
from runtime.commands.check_all import check_all
from runtime.commands.check_input import Given, read_given
from specs.check import Checked, Finding, check_cases
from specs.checker import EXIT, VIOLATED, Bounds, Result
from specs.concrete import Concrete, Untold, concrete
from specs.reports import check_values, junit_text, sarif_values, sentence
from specs.save import pytest_text, scenario_text
from specs.scopes import Case, ScopeName, cases_of, say_bounds
from specs.story import tell_story

TOOL_FAILED = 1
"""The exit code for what is wrong with the input; violated is 2, undetermined 3."""


_USAGE_ERROR: Any = typer.BadParameter.__base__


class CheckCommand(TyperCommand):
    """A command whose wrong use exits with 1: 2 says that something is violated."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """The context; a usage error is shown and exits with that code."""
        try:
            return super().make_context(*args, **extra)
        except _USAGE_ERROR as error:
            error.show()
            raise typer.Exit(TOOL_FAILED) from None


def check(
    config: Annotated[
        Path | None, typer.Argument(help="A run's YAML, or a scenario file; without, the default run.")
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="Check under this sampler instead: module:ClassName, or path/to/file.py:ClassName."),
    ] = None,
    sampler_option: Annotated[
        list[str] | None, typer.Option(help="key=value for the sampler's constructor; again for more.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check the whole matrix of configurations instead.")] = False,
    scope: Annotated[ScopeName, typer.Option(help="How much to go through.")] = ScopeName.DEFAULT,
    setup_checks: Annotated[
        bool,
        typer.Option(
            "--setup-checks/--no-setup-checks",
            help="Refuse what cannot run, as a real run does; without, see how it goes wrong.",
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF to this file.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the counterexample as a scenario to this file, and as a pytest test beside it."),
    ] = None,
    max_states: Annotated[
        int, typer.Option(min=1, help="States of one case after which it is undetermined.")
    ] = 20_000_000,
    seconds: Annotated[float | None, typer.Option(min=0, help="The same in seconds.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; without, one for each CPU.")] = None,
) -> None:
    """Prove that a configuration cannot hang, miscount, lose a prompt or train one twice, within stated bounds.

    The configuration is scaled down to a few small cases that keep what matters, and every state of those is gone
    through: whatever rollouts, trainer and crashes do, at any time. Exits with 0 if all properties hold, 2 if one is
    violated, 3 if a bound was hit before that could be told, 1 if the input is wrong or evenstep itself failed.

    Example: evenstep check examples/windowed.yaml
    """
    bounds = Bounds(states=max_states, seconds=seconds)
    processes = jobs or os.cpu_count() or 1
    if every:
        if config is not None or sampler is not None:
            _fail("--all checks the matrix of configurations; it goes with no CONFIG and no --sampler")
        raise typer.Exit(check_all(scope, bounds, processes, as_json))
    try:
        given = read_given(config, sampler, sampler_option or [], check_setup=setup_checks)
        cases = [
            case._replace(scaled=case.scaled._replace(kept=given.kept + case.scaled.kept))
            for case in cases_of(given.config, scope, given.num_prompts)
        ]
    except ConfigError as refused:
        _fail(str(refused))
    checked = _go_through(cases, bounds, processes, given, scope, quiet=as_json)
    violations = checked.violations()
    story: Concrete | str = _with_prompts(*violations[0]) if violations else "nothing is violated"
    with_prompts = story if isinstance(story, Concrete) else None
    if as_json:
        typer.echo(json.dumps(check_values(checked, with_prompts), indent=2))
    else:
        _print_verdict(checked, violations, story)
    if junit is not None:
        junit.write_text(junit_text(checked, given.name), encoding="utf-8")
    if sarif is not None:
        file = None if config is None else config.as_posix()
        sarif.write_text(json.dumps(sarif_values(checked, file, version("evenstep")), indent=2), encoding="utf-8")
    if save is not None:
        _save(save, violations, story)
    raise typer.Exit(EXIT[checked.verdict])


def _fail(message: str) -> None:
    typer.echo(f"evenstep check: {message}", err=True)
    raise typer.Exit(TOOL_FAILED)


def _go_through(
    cases: Sequence[Case], bounds: Bounds, jobs: int, given: Given, scope: ScopeName, *, quiet: bool
) -> Checked:
    """All cases, with a line for each as it comes, and on a terminal how far it is."""
    if not quiet:
        typer.echo(f"{given.name}: sampler {given.sampler}, scope {scope.value}, {len(cases)} cases")
    terminal = Console(stderr=True)
    width = max(len(case.name) for case in cases)
    with terminal.status(f"going through {len(cases)} cases") as status:
        done: list[Finding] = []
        started_s = time.monotonic()

        def tell(finding: Finding) -> None:
            done.append(finding)
            states = sum(each.states for each in done)
            took_s = time.monotonic() - started_s
            status.update(f"{len(done)} of {len(cases)} cases, {states:,} states, {took_s:.1f} s")
            if not quiet:
                typer.echo(_case_line(finding, width))

        return check_cases(cases, bounds, jobs=jobs, tell=tell)


def _case_line(finding: Finding, width: int) -> str:
    seconds = sum(result.seconds for result in finding.results)
    why = f"  ({finding.why.splitlines()[0]})" if finding.why else ""
    return (
        f"  {finding.verdict:<12} {finding.case.name:<{width}}  {finding.states:>9,} states "
        f"{finding.transitions:>10,} transitions {seconds:>6.1f} s{why}\n      {say_bounds(finding.case)}"
    )


def _with_prompts(case: Case, result: Result) -> Concrete | str:
    """The counterexample with prompts, or why there is none."""
    try:
        return concrete(case, result)
    except Untold as reason:
        return str(reason)


def _print_verdict(checked: Checked, violations: Sequence[tuple[Case, Result]], story: Concrete | str) -> None:
    totals = f"{checked.states:,} states, {checked.transitions:,} transitions, {checked.seconds:.1f} s"
    if not violations:
        within = {"holds": "for the bounds above, and for no others"}.get(
            checked.verdict, "a bound was hit: no verdict"
        )
        typer.echo(f"{checked.verdict}: {totals}; {within}")
        return
    case, result = violations[0]
    typer.echo(f"{VIOLATED}: {result.broken}: {sentence(case, result)}; {totals}")
    with_prompts = story if isinstance(story, Concrete) else None
    typer.echo(f"the shortest counterexample has {len(result.counterexample)} events (case {case.name}):")
    for line in tell_story(case, result, with_prompts):
        typer.echo(f"  {line}")
    for other_case, other in violations[1:]:
        typer.echo(
            f"also violated: {other.broken}: {sentence(other_case, other)} ({len(other.counterexample)} events, "
            f"case {other_case.name})"
        )


def _save(path: Path, violations: Sequence[tuple[Case, Result]], story: Concrete | str) -> None:
    """Write the counterexample; a scenario only where it reproduces."""
    if not violations:
        typer.echo(f"nothing is violated, so {path} is not written", err=True)
        return
    case, result = violations[0]
    test = path.with_suffix(".py")
    test.write_text(pytest_text(case, result), encoding="utf-8")
    typer.echo(f"wrote {test}: pytest {test}", err=True)
    try:
        if isinstance(story, str):
            raise Untold(story)
        path.write_text(scenario_text(case, result, story), encoding="utf-8")
    except Untold as reason:
        typer.echo(f"{path} is not written, a scenario cannot tell this story: {reason}", err=True)
        return
    typer.echo(f"wrote {path}: evenstep scenario run --no-setup-checks {path}", err=True)
