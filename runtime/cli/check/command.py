"""`evenstep check`: prove, before a run starts, that its configuration or a custom sampler cannot go wrong."""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from typer.core import TyperCommand

from runtime.cli.check.all_built_in import check_all
from runtime.cli.check.ending import TOOL_FAILED, asking_apart, ending_at_signals, fail, saying_why_it_ends
from runtime.cli.check.input import Given, load_given, read_given
from runtime.cli.check.output import Outputs, refuse_outputs, save_story, write_reports
from runtime.wording import counted
from specs.check.cases import Case, ScopeName, cases_of, outside_code, say_bounds
from specs.check.concrete import Concrete, Untold, concrete
from specs.check.formats import check_values, sentence
from specs.check.story import tell_story
from specs.check.verdicts import CaseResult, Checked, check_cases, never_happens
from specs.checker.explore import EXIT, VIOLATED, Result
from specs.engine.search import Bounds
from specs.processes.hanging import Hangs, watched

_USAGE_ERROR: Any = typer.BadParameter.__base__


class CheckCommand(TyperCommand):
    """A command whose wrong use exits with 1, since 2 means that a property is violated."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
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
    own_property: Annotated[
        list[str] | None,
        typer.Option("--property", help="Check this property too: module:name, or file.py:name; again for more."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check the whole matrix of configurations instead.")] = False,
    scope: Annotated[ScopeName, typer.Option(help="How much to explore.")] = ScopeName.DEFAULT,
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
        typer.Option(help="Write the counterexample as a scenario to this file, and next to it as a pytest test."),
    ] = None,
    max_states: Annotated[
        int, typer.Option(min=1, help="States of one case after which it is undetermined.")
    ] = 20_000_000,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Seconds for one case after which it is undetermined.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; without, one for each CPU.")] = None,
) -> None:
    """Prove that a configuration cannot hang, miscount, lose a prompt or train one twice, within stated bounds.

    The configuration is scaled down to a few small cases that keep what matters, and every state of those is explored,
    with every answer of rollouts and trainer, and a crash at any time.

    Exit codes: 0 all properties hold, 2 one is violated, 3 a bound was hit before that could be told, 1 there is no
    verdict: the command, the configuration, the sampler or a property is refused, one of the two ended its process, or
    evenstep itself failed; 130 and 143 it was ended by Ctrl-C or SIGTERM.

    Example: evenstep check examples/windowed.yaml
    """
    bounds = Bounds(states=max_states, seconds=seconds)
    processes = jobs or os.cpu_count() or 1
    outputs = Outputs(junit, sarif, save)
    with ending_at_signals(), saying_why_it_ends():
        if every:
            given_too = {
                "CONFIG": config, "--sampler": sampler, "--sampler-option": sampler_option,
                "--property": own_property, "--no-setup-checks": not setup_checks,
                **{f"--{name}": path for name, path in outputs._asdict().items()},
            }  # fmt: skip
            if options := [name for name, value in given_too.items() if value not in (None, [], False)]:
                fail(f"--all checks the matrix of configurations; it goes with no {', '.join(options)}")
            raise typer.Exit(check_all(scope, bounds, processes, as_json))
        given = read_given(config, sampler, sampler_option or [], own_property or [], check_setup=setup_checks)

        def work(hangs: Hangs | None) -> int:
            with _printing(as_json), watched(hangs):
                loaded = load_given(given, check_setup=setup_checks)
            refuse_outputs(outputs, loaded.read)
            return EXIT[_Check(config, loaded, outputs, scope, bounds, processes, as_json, hangs).run()]

        outside = outside_code(given.config, given.properties)
        raise typer.Exit(asking_apart(outside, seconds, work) if outside else work(None))


def _printing(as_json: bool) -> AbstractContextManager[object]:
    """Where the user's code prints: with --json to stderr, since stdout is for the one object."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


class _Check(NamedTuple):
    """One check of one configuration."""

    config: Path | None
    given: Given
    outputs: Outputs
    scope: ScopeName
    bounds: Bounds
    jobs: int
    as_json: bool
    hangs: Hangs | None

    def run(self) -> str:
        """Explore, print and write. Returns the verdict."""
        given = self.given
        with watched(self.hangs):
            cases = [
                case._replace(scaled=case.scaled._replace(kept=given.kept + case.scaled.kept))
                for case in cases_of(given.config, self.scope, given.num_prompts, given.properties)
            ]
        with _printing(self.as_json):
            checked = self._explore(cases)
            with watched(self.hangs):
                violations = checked.violations()
                story: Concrete | str = _with_prompts(*violations[0]) if violations else "nothing is violated"
        with_prompts = story if isinstance(story, Concrete) else None
        if self.as_json:
            typer.echo(json.dumps(check_values(checked, with_prompts), indent=2))
        else:
            _print_verdict(checked, violations, with_prompts)
        write_reports(self.outputs, checked, given.name, self.config)
        if self.outputs.save is not None:
            save_story(self.outputs.save, violations, story)
        return checked.verdict

    def _explore(self, cases: Sequence[Case]) -> Checked:
        """All cases: a line for each as it ends, and on a terminal the progress."""
        if not self.as_json:
            own = "".join(f", property {target}" for target in self.given.properties)
            name, sampler = self.given.name, self.given.sampler
            typer.echo(f"{name}: sampler {sampler}{own}, scope {self.scope.value}, {len(cases)} cases")
            if self.given.promises is not None:
                typer.echo(f"  the sampler {self.given.promises}")
        terminal = Console(stderr=True)
        width = max(len(case.name) for case in cases)
        with terminal.status(f"exploring {len(cases)} cases") as status:
            done: list[CaseResult] = []
            started_s = time.monotonic()

            def tell(finding: CaseResult) -> None:
                done.append(finding)
                states = sum(each.states for each in done)
                took_s = time.monotonic() - started_s
                status.update(f"{len(done)} of {len(cases)} cases, {states:,} states, {took_s:.1f} s")
                if not self.as_json:
                    typer.echo(_case_line(finding, width))

            return check_cases(cases, self.bounds, jobs=self.jobs, tell=tell, hangs=self.hangs)


def _case_line(finding: CaseResult, width: int) -> str:
    why = f"  ({finding.why.splitlines()[0]})" if finding.why else ""
    return (
        f"  {finding.verdict:<12} {finding.case.name:<{width}}  {finding.states:>9,} states "
        f"{finding.transitions:>10,} transitions {finding.seconds:>6.1f} s{why}\n      {say_bounds(finding.case)}"
    )


def _with_prompts(case: Case, result: Result) -> Concrete | str:
    """The counterexample with prompts, or why there is none."""
    try:
        return concrete(case, result)
    except Untold as reason:
        return str(reason)


def _print_verdict(checked: Checked, violations: Sequence[tuple[Case, Result]], with_prompts: Concrete | None) -> None:
    totals = f"{checked.states:,} states, {checked.transitions:,} transitions, {checked.seconds:.1f} s"
    if not violations:
        holds = checked.verdict == "holds"
        within = "for the bounds above, and for no others" if holds else "a bound was hit: no verdict"
        typer.echo(f"{checked.verdict}: {totals}; {within}")
        return
    case, result = violations[0]
    typer.echo(f"{VIOLATED}: {result.broken}: {sentence(case, result)}; {totals}")
    if not never_happens(case, result):
        typer.echo(
            f"the shortest counterexample has {counted(len(result.counterexample), 'event')} (case {case.name}):"
        )
        for line in tell_story(case, result, with_prompts):
            typer.echo(f"  {line}")
    for other_case, other in violations[1:]:
        typer.echo(
            f"also violated: {other.broken}: {sentence(other_case, other)} "
            f"({counted(len(other.counterexample), 'event')}, case {other_case.name})"
        )
