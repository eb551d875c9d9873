"""Recorded runs of the real core, for the tests of the trace."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsm.core import AppliedEvent, Core
from runtime.trace.files import make_header
from runtime.trace.writer import Trace, TraceConfig
from specs.scenarios.world import World
from tests.runtime.bookkeeping import config_of, random_moves, world_of

SAMPLERS = ("in_order", "ready_first", "windowed", "weight_fifo")


def traced_world(
    trace: Trace, sampler: str, num_prompts: int, then: Callable[[int, Core], None] | None = None
) -> World:
    """A world whose core is observed by a trace; `then` is told the number of each transition's record."""

    def observe(transition: AppliedEvent, core: Core) -> None:
        seq = trace.records
        trace.observe(transition, core)
        if then is not None:
            then(seq, core)

    return world_of(config_of(sampler), num_prompts, observe)


def open_for(path: Path, sampler: str = "in_order", *, num_prompts: int = 24, **options: Any) -> Trace:
    """A trace that is written at once, not by and by, unless the options say otherwise."""
    header = make_header(config_of(sampler), num_prompts=num_prompts, seeds={"data": 1})
    return Trace(path, header, TraceConfig(**{"snapshot_every": 10, "flush_interval_s": 1.0, **options}))


def recorded_run(
    path: Path, sampler: str = "in_order", *, seed: int = 0, moves: int = 10_000, num_prompts: int = 24, **options: Any
) -> World:
    """A run of the real core, written down."""
    with open_for(path, sampler, num_prompts=num_prompts, **options) as trace:
        world = traced_world(trace, sampler, num_prompts)
        random_moves(world, seed, moves)
    return world


def write_until_killed(path: Path, sampler: str, seed: int) -> None:
    """Runs on and on; for a process that is killed. Rotates every 20 kB."""
    with open_for(path, sampler, num_prompts=10**9, flush_interval_s=0.05, max_bytes=20_000) as trace:
        world = traced_world(trace, sampler, 10**9)
        chance = random.Random(seed)
        while True:
            random_moves(world, chance.randrange(1 << 30), 50)
