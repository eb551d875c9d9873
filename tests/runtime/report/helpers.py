"""Recorded runs to look at: losses of every kind, two workers, and a clock that goes on."""

import json
import random
from pathlib import Path
from typing import Any

from fsm.core import AppliedEvent, Core
from fsm.events import FailureKind
from fsm.snapshot import restore, snapshot
from runtime.report.collect import Collected, collect
from runtime.report.traces import older_of
from runtime.trace.files import make_header
from runtime.trace.notes import CallBegan, CallEnded, NoProgress, WorkerDied
from runtime.trace.reader import open_trace
from runtime.trace.writer import Trace
from specs.scenarios.world import World
from tests.runtime.bookkeeping import config_of, random_moves, running_prompts, step_on
from tests.runtime.explain.helpers import Recorded, recording
from tests.runtime.explain.helpers import config_of as config_with
from tests.runtime.trace.helpers import open_for, traced_world

PROMPTS = 60
TRACES = ("trace.jsonl", "trace-1.jsonl", "trace-2.jsonl")
HOSTILE = (
    "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\"> <!--  --> "
    "{{columns}} {{data}} \x1b[2J\x1b]0;title\x07 \x00 \udcff \u202e 'quotes\" & ]]> \u2028 &lt;"
)


def wander(run: Recorded, seed: int, moves: int = 10_000) -> None:
    """Rollouts finish, fail or are filtered, and the trainer reports, in an order of the seed; time passes."""
    chance = random.Random(seed)
    world = run.world
    losses = world.config.grpo.use_dynamic_sampling
    for _ in range(moves):
        if world.over:
            return
        run.later(round(chance.random(), 3))
        running = running_prompts(world)
        if running and chance.random() < 0.7:
            prompt = chance.choice(running)
            what = chance.random()
            if losses and what < 0.15:
                run.filter(prompt)
            elif losses and what < 0.25:
                world.fail(prompt, chance.choice(list(FailureKind)), "the engine said <b>no</b>")
            else:
                run.commit(prompt)
        elif step_on(world):
            run.note(CallBegan("checkpoint", world.core.state.trainer.version))
            run.note(CallEnded("checkpoint", world.core.state.trainer.version))


def wandered(
    path: Path, sampler: str = "in_order", *, seed: int = 0, num_prompts: int = 24, moves: int = 10_000
) -> Core:
    """A run that is written down, and its core as it ended."""
    with recording(path, config_of(sampler), num_prompts) as run:
        wander(run, seed, moves)
    return run.world.core


def collected(path: Path) -> Collected:
    """Everything that a report shows of a trace."""
    return collect(open_trace(path))


def record_hostile(path: Path) -> None:
    """A trace with hostile content wherever a text can be."""
    with recording(path, config_with("in_order", 2, failure={"backoff_base_s": 1.0})) as run:
        run.world.fail(0, FailureKind.INFRA, HOSTILE)
        run.world.fail(1, FailureKind.INFRA, "y" * 1_000_000 + HOSTILE)
        run.note(WorkerDied(HOSTILE, HOSTILE))
        run.note(NoProgress(9.0, HOSTILE))


def resumed_twice(directory: Path, sampler: str, *, kept: int = 45, lost: int = 30) -> Core:
    """Three processes: the second and the third go on from the same checkpoint, the third to the end of the run."""
    with open_for(directory / TRACES[0], sampler, num_prompts=PROMPTS) as trace:
        world = traced_world(trace, sampler, PROMPTS)
        random_moves(world, 2, kept)
        saved = json.loads(json.dumps(snapshot(world.core)))
        random_moves(world, 3, lost)
    go_on(world, directory, saved, 1, lost)
    return go_on(world, directory, saved, 2, 10_000)


def go_on(world: World, directory: Path, saved: dict[str, Any], incarnation: int, moves: int) -> Core:
    header = make_header(world.config, num_prompts=PROMPTS, seeds={}, snapshot=saved, incarnation=incarnation)
    with Trace(directory / TRACES[incarnation], header) as trace:

        def observe(transition: AppliedEvent) -> None:
            trace.observe(transition, core)

        core = restore(world.setup, saved, incarnation=incarnation, observer=observe)
        world.core, world._observer = core, None
        world._open()
        random_moves(world, 3 + incarnation, moves)
    return core


def of_all_traces(directory: Path) -> Collected:
    newest = open_trace(directory)
    return collect(newest, older=older_of(newest).traces)
