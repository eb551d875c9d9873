"""Recorded runs to look at: losses of every kind, two workers, and a clock that goes on."""

import random
from pathlib import Path

from fsm.core import Core
from fsm.events import FailureKind
from runtime.report.collect import Collected, collect
from runtime.trace.notes import CallBegan, CallEnded, NoProgress, WorkerDied
from runtime.trace.reader import open_trace
from tests.runtime.bookkeeping import config_of, running_prompts, step_on
from tests.runtime.explain.helpers import Recorded, recording
from tests.runtime.explain.helpers import config_of as config_with

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
