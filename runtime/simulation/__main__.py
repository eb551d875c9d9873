"""`python -m runtime.simulation`: 0 if every run was right, 1 if one was not, 2 for wrong arguments."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runtime.simulation.crash_points import crash_points
from runtime.simulation.mutants import SEEDS, Caught, hunt_each
from runtime.simulation.plan import SAMPLERS, plan_of
from runtime.simulation.runs import Story, simulate
from runtime.simulation.scripted import scenario_problems
from runtime.simulation.table import Totals
from specs.scenarios.file import ScenarioMistake
from specs.scenarios.run import find_scenarios

BATCH = 50
"""Runs that a process takes at once."""
LAST = 25
"""Records that the report of a failure shows."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def report(story: Story) -> str:
    """A run that is wrong: what was found, its faults, its last events, and the command that replays it."""
    plan = story.plan
    return "\n".join(
        [
            f"seed {plan.seed} ({plan.sampler}): {story.outcome or 'unfinished'} after {story.events} events, "
            f"{story.lives} controllers and {story.virtual_s:.1f} virtual seconds",
            *(f"  wrong: {what}" for what in story.wrong[:10]),
            f"  faults, {len(story.happened)}; the last {LAST}:",
            *(f"    {happening}" for happening in story.happened[-LAST:]),
            f"  last records of the trace, of {len(story.lines)}:",
            *(f"    {line:.300}" for line in story.lines[-LAST:]),
            f"  replay it with: python -m runtime.simulation --only {plan.seed} --sampler {plan.sampler}",
        ]
    )


def _batch(seeds: range, sampler: str | None) -> list[Story]:
    """In a process of its own. A run that raises is told as one that is wrong."""
    return [_one(seed, sampler) for seed in seeds]


def _one(seed: int, sampler: str | None) -> Story:
    plan = plan_of(seed, sampler)
    try:
        story = simulate(plan)
        return simulate(plan, traced=True) if story.wrong else story
    except Exception as error:
        return Story(plan, "failed", wrong=[f"{type(error).__name__}: {error}"])


def _many(seeds: range, sampler: str | None, jobs: int) -> tuple[Totals, Story | None]:
    """All runs, or as many as it takes to find one that is wrong, which is returned too."""
    totals = Totals()
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err) as progress:
        shown = progress.add_task("simulated runs", total=len(seeds))
        for stories in _batches(seeds, sampler, jobs):
            for story in stories:
                totals.add(story)
                progress.advance(shown)
            if wrong := [story for story in stories if story.wrong]:
                return totals, wrong[0]
    return totals, None


def _batches(seeds: range, sampler: str | None, jobs: int) -> Iterator[list[Story]]:
    """The runs, as they are done."""
    batches = [seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH)]
    if jobs == 1:
        yield from (_batch(batch, sampler) for batch in batches)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            for done in as_completed([pool.submit(_batch, batch, sampler) for batch in batches]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _hunt() -> list[Caught]:
    """Every mutant, told as it is noticed."""
    caught = []
    for each in hunt_each():
        caught.append(each)
        noticed = f"seed {each.seed}: {each.wrong:.110}" if each.seed is not None else f"SURVIVES {SEEDS} runs"
        out.print(f"{each.mutant.name}\n    {noticed}")
    return caught


def _scenarios(path: Path) -> int:
    """Scenario files through the pumps; 0 if all hold, 1 if one does not, 2 for a path or file that is none."""
    try:
        found = {file: scenario_problems(file) for file in find_scenarios([path])}
    except (FileNotFoundError, ScenarioMistake) as error:
        err.print(f"--scenario {path}: {error}")
        return 2
    for file, problems in found.items():
        out.print(f"{'holds' if not problems else 'FAILS'}  {file}", *problems, sep="\n    ")
    return int(any(found.values()))


@app.command()
def main(
    runs: Annotated[int, typer.Option(min=1, help="How many runs, of as many seeds.")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that simulate at the same time.")] = 2,
    only: Annotated[int | None, typer.Option(min=0, help="Replay the run of this seed, with its whole trace.")] = None,
    sampler: Annotated[str | None, typer.Option(help=f"One of {', '.join(SAMPLERS)}; each seed draws its own.")] = None,
    mutants: Annotated[bool, typer.Option(help="Also say which seed notices each faulty pump.")] = False,
    crashes: Annotated[
        bool, typer.Option(help="Also crash at every event after a checkpoint at every earlier.")
    ] = False,
    scenario: Annotated[
        Path | None, typer.Option(help="Run this scenario file, or all below this folder, through the pumps instead.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Write the table of all runs to this file.")] = None,
) -> None:
    """Simulate faulty runs of the real control code on a virtual clock, each from its seed.

    Workers answer late, twice or never, and die; the trainer, a store, a disk and the controller fail; the run resumes.
    Every run must end, with every prompt in one place and none trained twice. Exit status: 0 if all do, 1 if one does
    not: it is told with its faults, its last events, and the command that replays it.
    """
    if sampler is not None and sampler not in SAMPLERS:
        raise typer.BadParameter(f"{sampler} is none of {', '.join(SAMPLERS)}", param_hint="--sampler")
    if only is not None:
        story = simulate(plan_of(only, sampler), traced=True)
        out.print("\n".join(story.lines))
        out.print(report(story) if story.wrong else f"seed {only}: {story.outcome}; trace {story.digest}")
        raise typer.Exit(bool(story.wrong))
    if scenario is not None:
        raise typer.Exit(_scenarios(scenario))
    began_s = time.monotonic()
    seeds = range(seed, seed + runs)
    totals, wrong = _many(seeds, sampler, jobs)
    if wrong is not None:
        out.print(report(wrong))
        raise typer.Exit(1)
    wall_s = time.monotonic() - began_s
    out.print(f"{totals.runs} runs in {wall_s:.0f} s, none of them wrong")
    caught = _hunt() if mutants else []
    survivors = [each for each in caught if each.seed is None]
    if crashes:
        for name in SAMPLERS:
            pairs = crash_points(name, every_crash=True)
            out.print(f"{name}: {pairs} pairs of a checkpoint and a crash, all of them right")
    if write is not None:
        write.write_text(totals.document(seeds, wall_s, jobs, caught), encoding="utf-8")
    raise typer.Exit(bool(survivors))


if __name__ == "__main__":
    sys.exit(app())
